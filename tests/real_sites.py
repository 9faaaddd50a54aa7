"""Writes site folders (manifest, site file) over the real images of ../shared/data, which stay where they are."""

import csv
from pathlib import Path

import yaml

# Criteria as in shared/data/README.md: five grades, six with ungradable, five, four.
OCT_SITES = {"kermany": "oct4", "octdl": "octdl7"}
SITES = {"aptos2019": "icdr5", "eyepacs": "icdr5_ungradable", "idrid": "icdr5", "odir5k": "normal_3stages"}


def write_real_sites(shared: Path, folder: Path, limit: dict[str, int] | None = None) -> Path:
    """Write one folder per site; returns the value for FEDRETINA_SITE_FILE."""
    with open(shared / "fundus" / "labels.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    for site, scheme in SITES.items():
        (folder / site).mkdir(parents=True)
        with open(folder / site / "manifest.csv", "w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(["file", "label", "patient", "split"])
            for row in rows:
                if row["site"] == site:
                    reject = scheme == "icdr5_ungradable" and row["quality"] == "reject"
                    label = "ungradable" if reject else row["grade"]
                    writer.writerow([row["file"], label, row["group"], row["split"]])
        words = {
            "data": {
                "manifest": "manifest.csv",
                "images": str((shared / "fundus").resolve()),
                "scheme": scheme,
                **({"limit": limit} if limit else {}),
            }
        }
        (folder / site / "site.yaml").write_text(yaml.safe_dump(words))
    return folder / "{SITE_NAME}" / "site.yaml"


def write_real_oct_sites(
    shared: Path, folder: Path, limit: dict[str, int] | None = None, schemes: dict[str, str] | None = None
) -> Path:
    """Write one folder an OCT site; returns the value for FEDRETINA_SITE_FILE.

    With "oct3" as a site's scheme, scans of other diseases keep their row in train without a label, and have none in
    val and test.
    """
    with open(shared / "oct" / "labels.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    for site, scheme in (schemes or OCT_SITES).items():
        (folder / site).mkdir(parents=True)
        with open(folder / site / "manifest.csv", "w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(["file", "label", "patient", "split"])
            for row in rows:
                label = row["label3"] if scheme == "oct3" else row["disease"]
                if row["site"] == site and (label or row["split"] == "train"):
                    writer.writerow([row["file"], label, row["group"], row["split"]])
        words = {
            "data": {
                "manifest": "manifest.csv",
                "images": str((shared / "oct").resolve()),
                "scheme": scheme,
                **({"limit": limit} if limit else {}),
            }
        }
        (folder / site / "site.yaml").write_text(yaml.safe_dump(words))
    return folder / "{SITE_NAME}" / "site.yaml"
