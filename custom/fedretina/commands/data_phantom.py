"""`fedretina data phantom`: draw a phantom hospital to disk."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

import click

from fedretina.commands.lazy import fail
from fedretina.commands.options import SITE
from fedretina.commands.progress import progress
from fedretina.commands.scheme_names import MODALITIES, SCHEMES, SCHEMES_OF

_TITLES = {
    "fundus": "fundus photographs",
    "oct": "OCT scans",
    "dermoscopy": "dermoscopic pictures",
    "heart_sound": "heart sounds",
    "activity": "activities",
}
_SIGNALS = ("heart_sound", "activity")


@click.command()
@click.option("--site", type=SITE, required=True, help="Name of the hospital; see below.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write, new or empty.")
@click.option("--modality", type=click.Choice(MODALITIES), default="fundus", show_default=True,
              help="What the hospital takes.")  # fmt: skip
@click.option("--images", type=click.IntRange(16), default=160, show_default=True,
              help="Training images of an average hospital; this one may have more or fewer.")  # fmt: skip
@click.option("--size", type=click.IntRange(32, 1024), default=256, show_default=True,
              help="Side of the square pictures, pixels; signals have none.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of patients and pictures.")
@click.option("--scheme", type=click.Choice(SCHEMES),
              help="Grades instead of the hospital's own, of the same modality.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the record instead of the table.")
def phantom(site: str, out: Path, modality: Any, images: int, size: int, seed: int, scheme: str | None,
            as_json: bool) -> None:  # fmt: skip
    """Draw the phantom hospital of a site to disk: synthetic pictures or signals, manifest and site file.

    \b
    OUT/images/phantom-*.png  the pictures; heart sounds and windows of activity are .wav files
    OUT/manifest.csv          one row a picture: file, label, patient, split
    OUT/site.yaml             the site file; point FEDRETINA_SITE_FILE to it
    OUT/README.txt            says that they are synthetic

    \b
    Fundus: site-1 to site-5 are modelled on APTOS, Messidor, DDR, EyePACS and IDRiD.
    OCT:    site-1 to site-3 share Kermany's scanner with skewed classes, site-4 has another scanner.
    Dermoscopy: site-1 to site-4 are modelled on four centres of Fed-ISIC2019.
    Heart sounds: site-1 to site-6 are modelled on the databases of PhysioNet/CinC 2016.
    Activity: site-1 to site-8 are eight wearers of a sensor, with the activities of PAMAP2.
    Any other name gets one of them by a hash, with a camera, scanner or stethoscope of its own.

    The same options give the same files. Each file is marked as synthetic, pictures from 128 pixels on in a corner too,
    and a site that reads them is reported as synthetic.
    """  # noqa: D301
    from fedretina.data.phantoms.draw import SITE_FILE, write_hospital
    from fedretina.data.phantoms.hospital import phantom_hospital
    from fedretina.data.scheme_presets import preset
    from fedretina.errors import FedretinaError

    if scheme and scheme not in SCHEMES_OF[modality]:
        fail(f"{scheme} grades no {_TITLES[modality]}: name another scheme.")
    try:
        hospital = phantom_hospital(site, images, preset(scheme) if scheme else None, modality)
        with progress("signals" if modality in _SIGNALS else "pictures") as tell:
            record = write_hospital(site, hospital, out, size, seed, tell)
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps(record, indent=1, sort_keys=True))
        return
    for line in _table(record):
        click.echo(line)
    kind = "signals" if modality in _SIGNALS else "pictures"
    sides = "" if modality in _SIGNALS else f"{size} px, "
    click.echo(f"SYNTHETIC {kind} of a phantom hospital ({modality}, {sides}seed {seed}), written to {out}")
    click.echo(f"next: fedretina data check {quote(str(out / SITE_FILE))}")


def _table(record: dict[str, Any]) -> list[str]:
    """Images a grade and split, then patients a split."""
    splits = list(record["images"])
    rows = [["", *splits]]
    rows += [[grade, *(str(record["images"][split][grade]) for split in splits)] for grade in record["grades"]]
    rows.append(["images", *(str(sum(record["images"][split].values())) for split in splits)])
    rows.append(["patients", *(str(record["patients"][split]) for split in splits)])
    wide = max(len(row[0]) for row in rows)
    return [row[0].ljust(wide) + "".join(cell.rjust(8) for cell in row[1:]) for row in rows]
