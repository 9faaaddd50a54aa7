"""Writes site folders (manifest, site file) over the real images of ../shared/data, which stay where they are."""

import csv
from pathlib import Path

import yaml

# Criteria as in shared/data/README.md: five grades, six with ungradable, five, four.
OCT_SITES = {"kermany": "oct4", "octdl": "octdl7"}
SITES = {"aptos2019": "icdr5", "eyepacs": "icdr5_ungradable", "idrid": "icdr5", "odir5k": "normal_3stages"}


def write_real_sites(shared: Path, folder: Path, limit: dict[str, int] | None = None) -> Path:
    """Write one folder per site; returns the value for FEDRETINA_SITE_FILE."""
    rows = _labels(shared / "fundus")
    for site, scheme in SITES.items():
        graded = []
        for row in rows:
            if row["site"] == site:
                reject = scheme == "icdr5_ungradable" and row["quality"] == "reject"
                graded.append([row["file"], "ungradable" if reject else row["grade"], row["group"], row["split"]])
        _write_site(folder / site, shared / "fundus", scheme, graded, limit)
    return folder / "{SITE_NAME}" / "site.yaml"


def write_real_oct_sites(
    shared: Path, folder: Path, limit: dict[str, int] | None = None, schemes: dict[str, str] | None = None
) -> Path:
    """Write one folder an OCT site; returns the value for FEDRETINA_SITE_FILE.

    With "oct3" as a site's scheme, scans of other diseases keep their row in train without a label, and have none in
    val and test.
    """
    rows = _labels(shared / "oct")
    for site, scheme in (schemes or OCT_SITES).items():
        graded = []
        for row in rows:
            label = row["label3"] if scheme == "oct3" else row["disease"]
            if row["site"] == site and (label or row["split"] == "train"):
                graded.append([row["file"], label, row["group"], row["split"]])
        _write_site(folder / site, shared / "oct", scheme, graded, limit)
    return folder / "{SITE_NAME}" / "site.yaml"


def _labels(images: Path) -> list[dict[str, str]]:
    with open(images / "labels.csv", newline="") as handle:
        return list(csv.DictReader(handle))


def _write_site(folder: Path, images: Path, scheme: str, graded: list[list[str]], limit: dict[str, int] | None) -> None:
    folder.mkdir(parents=True)
    with open(folder / "manifest.csv", "w", newline="") as handle:
        csv.writer(handle).writerows([["file", "label", "patient", "split"], *graded])
    data = {"manifest": "manifest.csv", "images": str(images.resolve()), "scheme": scheme}
    (folder / "site.yaml").write_text(yaml.safe_dump({"data": data | ({"limit": limit} if limit else {})}))
