"""A phantom hospital on disk: pictures, manifest and site file, for rehearsals with files in place of patients."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedretina.data.manifest import SPLITS, RawRow, write_manifest
from fedretina.data.phantoms.draw import draw_cases, draw_waves
from fedretina.data.phantoms.hospital import PHANTOM_VERSION, Case, PhantomHospital
from fedretina.data.phantoms.mark import write_png, write_wave
from fedretina.data.scheme_presets import PRESETS, preset
from fedretina.errors import DataError
from fedretina.settings.images import SIGNALS
from fedretina.storage import filled_folder

IMAGES, MANIFEST, SITE_FILE, README = "images", "manifest.csv", "site.yaml", "README.txt"


def write_hospital(
    site: str,
    hospital: PhantomHospital,
    folder: Path,
    size: int,
    seed: int,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Draw all pictures of a phantom hospital into a folder, with what a site needs to take part.

    The same site, hospital, size and seed give the same files, and the pictures that a phantom site of that name draws
    in memory. The folder is filled wholly or not at all.

    Args:
        site: Name of the site.
        hospital: What to draw.
        folder: New or empty; made when missing.
        size: Side S of the square pictures in pixels; signals have none.
        seed: Of everything.
        tell: Called after each picture: how many are drawn, and of how many.

    Returns:
        A record: site, modality, grades, size, seed, images a split and grade, patients a split.

    Raises:
        DataError: The folder holds files already or cannot be written.
    """
    grades = hospital.scheme.grades
    record: dict[str, Any] = {
        "site": site,
        "modality": hospital.modality,
        "synthetic": True,
        "phantom_version": PHANTOM_VERSION,
        "grades": list(grades),
        "size": size,
        "seed": seed,
        "images": {},
        "patients": {},
    }
    purposes = {split: (seed, "phantom", site, split) for split in SPLITS}
    cases = {split: hospital.cases(at, purposes[split]) for at, split in enumerate(SPLITS)}
    of, drawn = sum(map(len, cases.values())), itertools.count(1)
    with filled_folder(folder, "the phantoms") as half:
        (half / IMAGES).mkdir()
        rows = []
        for split, some in cases.items():
            names = [case.file_name(split, hospital.modality) for case in some]
            paths = [half / IMAGES / name for name in names]
            _draw(hospital, some, paths, size, purposes[split], lambda: tell(next(drawn), of))
            rows += [
                RawRow(name, grades[case.label], case.patient_name(split), split)
                for name, case in zip(names, some, strict=True)
            ]
            labels = [case.label for case in some]
            record["images"][split] = {grade: labels.count(number) for number, grade in enumerate(grades)}
            record["patients"][split] = len({case.patient for case in some})
        write_manifest(half / MANIFEST, rows)
        _write(half / README, _readme(record))
        _write(half / SITE_FILE, _site_file(hospital))
    return record


def _draw(
    hospital: PhantomHospital,
    cases: Sequence[Case],
    paths: Sequence[Path],
    size: int,
    seed: tuple[int | str, ...],
    done: Callable[[], None],
) -> None:
    if hospital.modality in SIGNALS:
        for path, (rate, wave) in zip(paths, draw_waves(hospital, cases, seed), strict=True):
            write_wave(path, rate, wave)
            done()
        return
    for path, image in zip(paths, draw_cases(hospital, cases, size, seed), strict=True):
        write_png(path, image)
        done()


def _site_file(hospital: PhantomHospital) -> str:
    named = [name for name in PRESETS if preset(name) == hospital.scheme]
    scheme = named[0] if named else hospital.scheme.model_dump(mode="json")
    words = {"data": {"manifest": MANIFEST, "images": IMAGES, "scheme": scheme, "modality": hospital.modality}}
    head = "# SYNTHETIC: a phantom hospital, written by `fedretina data phantom`. For FEDRETINA_SITE_FILE.\n"
    return head + yaml.safe_dump(words, sort_keys=False)


def _readme(record: dict[str, Any]) -> str:
    total = sum(sum(counts.values()) for counts in record["images"].values())
    signals = record["modality"] in SIGNALS
    kind, size = ("signals", "") if signals else ("pictures", f", {record['size']} x {record['size']} pixels")
    mark = (
        """each WAV file carries the comment "Synthetic" in its list of
information. A site that reads them is reported as synthetic."""
        if signals
        else """each PNG carries the text chunk "Synthetic", and pictures of 128 pixels or
more have the word SYNTHETIC in their lower left corner. A site that reads them is reported as synthetic."""
    )
    return f"""SYNTHETIC {"SIGNALS" if signals else "IMAGES"}

The {total} {kind} in this folder were drawn by a program, `fedretina data phantom` (phantoms version \
{record["phantom_version"]}).
They show no patient, and no figure that is computed from them says anything about patients.

Each file's name begins with "phantom-", {mark}

site {record["site"]}, {record["modality"]}, seed {record["seed"]}{size}
{MANIFEST}: file, label, patient, split. {SITE_FILE}: the site file; point FEDRETINA_SITE_FILE to it.
"""


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DataError(f"{path} was not written ({error}): choose a folder that you may write to.") from error
