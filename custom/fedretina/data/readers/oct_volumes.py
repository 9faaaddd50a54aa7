"""OCT volumes as scanners export them, written B-scan by B-scan as PNG files; read by eyepy."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.patient_keys import SALT, keyed, site_salt
from fedretina.data.readers.scheme_of import scheme_of
from fedretina.data.readers.survey import ALL_BY_SEED, ImportSettings, LeftOut, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import read_table
from fedretina.data.readers.written import own_folder, write_file, write_png
from fedretina.errors import DataError, SettingsError, require_package
from fedretina.settings.scheme import whole_label

IMAGES = "images"
SCANS = "scans.csv"
SUFFIXES = (".vol", ".e2e")
_DAMAGED = "the file is damaged, holds several patients, or is of a form that eyepy does not read"
_NO_PATIENT = "it names no patient, so it cannot be kept on one side of a split"


class Listed(NamedTuple):
    """What the table says of a volume.

    Attributes:
        patient: Empty where it does not say.
        label: Of all its scans; empty where it does not say.
        scans: Labels of single scans by their number, from 1; where there are some, the others have none.
    """

    patient: str
    label: str
    scans: dict[int, str]

    def label_of(self, number: int) -> str:
        """The label of a scan; "" where it has none."""
        return self.scans.get(number, "") if self.scans else self.label


class Volume(NamedTuple):
    """One volume of a file.

    Attributes:
        patient: As the file names it; empty where it does not.
        laterality: As the file has it.
        scans: uint8 [H, W] each, in the order of the file.
    """

    patient: str
    laterality: str
    scans: list[NDArray[np.uint8]]


def survey(
    root: Path, settings: ImportSettings, out: Path, tell: Callable[[int, int], None] = lambda done, of: None
) -> Survey:
    """Read all volumes below a folder and write each B-scan as OUT/images/KEY.png.

    The key is a keyed hash of the file's place and the scan's number, with the site's salt; the import makes one of the
    patient's name. The patient is what the table says, else what the header of a .vol file says. A volume's label is
    a label of the eye: scans beside the lesion carry it too, unless the table labels scans one by one.

    Args:
        root: Files of any name and depth that end in `SUFFIXES`.
        settings: `labels`, a table with a column file (path relative to `root`) and, where there are some, label,
            patient and scan (its number, from 1); `unlabelled`, which also does without a table; `scheme`, `grades` and
            `ungradable` as in `scheme_of`; `salt`; `bad_files`.
        out: Where images and scans.csv go; the salt too by default.
        tell: Called with how many files are done, and of how many.

    Raises:
        DataError: There is no volume, the table is damaged, listed volumes are missing, a file is damaged, or the salt
            cannot be used.
        SettingsError: No table is named though labels are asked for, or eyepy is not installed.
    """
    if settings.labels is None and settings.unlabelled == "skip":
        raise SettingsError(
            "OCT volumes need a table of labels (--labels): a CSV with the columns file and label; or give "
            "--unlabelled train to import them for pre-training."
        )
    _require_eyepy()
    files = volume_files(root, out)
    if not files:
        raise DataError(f"{root} holds no file that ends in {' or '.join(SUFFIXES)}: mend the path.")
    listed = {} if settings.labels is None else read_list(settings.labels)
    left_out = _check_all_there(listed, set(files), settings)
    salt = site_salt(settings.salt or out / SALT)
    found: list[Photograph] = []
    lines = []
    own_folder(out / IMAGES)
    for done, file in enumerate(files):
        tell(done, len(files))
        told = listed.get(file, Listed("", "", {}))
        try:
            volumes = list(_volumes(root / file))
        except DataError:
            if settings.bad_files == "refuse":
                raise
            left_out.append(LeftOut(file, _DAMAGED))
            continue
        reason = unusable(volumes, told)
        if reason:
            left_out.append(LeftOut(file, reason))
            continue
        for at, volume in enumerate(volumes):
            patient = told.patient or volume.patient
            for number, scan in enumerate(volume.scans, start=1):
                label = told.label_of(number)
                if not label and settings.unlabelled == "skip":
                    left_out.append(LeftOut(f"{file}, scan {number}", "the table has no label for it"))
                    continue
                name = f"{keyed(salt, 'image', f'{file} {at} {number}')}.png"
                write_png(out / IMAGES / name, scan)
                found.append(Photograph(name, label, patient))
                lines.append(f"{name},{keyed(salt, 'volume', f'{file} {at}')},{number},{volume.laterality}\n")
    if not found:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in Counter(row.reason for row in left_out).items())
        raise DataError(f"none of the {len(files)} volumes under {root} can be imported ({reasons}).")
    # Names are hashes, so their order tells nothing of the order in which patients came.
    found.sort()
    write_file(out / SCANS, ("file,volume,scan,laterality\n" + "".join(sorted(lines))).encode())
    scheme = scheme_of({photograph.label for photograph in found}, settings, "oct")
    whole = sum(bool(told.label) and not told.scans for told in listed.values())
    beside = f"{whole} volumes have one label for all their scans: those beside the lesion carry it too."
    return Survey(tuple(found), scheme, tuple(left_out), (beside,) if whole else (), out / IMAGES)


def volume_files(root: Path, out: Path) -> list[str]:
    """The volumes below a folder, relative to it, without the import's own."""
    found = []
    for place, below, names in os.walk(root):
        below[:] = [
            name for name in below if not name.startswith(".") and (Path(place) / name).resolve() != out.resolve()
        ]
        found += [
            (Path(place) / name).relative_to(root).as_posix() for name in names if name.lower().endswith(SUFFIXES)
        ]
    return sorted(found)


def read_list(path: Path) -> dict[str, Listed]:
    """What a table says of each volume.

    Raises:
        DataError: It is no such table, contradicts itself, or a scan's number is none.
    """
    listed: dict[str, Listed] = {}
    for row in read_table(path, ["file"], optional=["label", "patient", "scan"]):
        file, label, patient, scan = (row.cells[name] for name in ("file", "label", "patient", "scan"))
        label, scan = whole_label(label), whole_label(scan)
        known = listed.get(file, Listed(patient, "" if scan else label, {}))
        if scan and not (scan.isdecimal() and int(scan) > 0):
            raise DataError(f"{path}, row {row.number}: scan is {scan!r}: write its number in the volume, from 1.")
        same = known.scans.get(int(scan), label) == label if scan else known.label == label and not known.scans
        if known.patient != patient or not same or (scan and known.label):
            raise DataError(
                f"{path}, row {row.number}: {file} is described otherwise before: keep one row, or one a scan."
            )
        listed[file] = known._replace(scans={**known.scans, int(scan): label}) if scan else known
    return listed


def unusable(volumes: list[Volume], told: Listed) -> str:
    """Why a file is left out; empty when it is not."""
    if not any(volume.scans for volume in volumes):
        return _DAMAGED
    return "" if told.patient or volumes[0].patient else _NO_PATIENT


def _check_all_there(listed: dict[str, Listed], files: set[str], settings: ImportSettings) -> list[LeftOut]:
    missing = [name for name in listed if name not in files]
    if missing and settings.bad_files == "refuse":
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise DataError(
            f"{len(missing)} of {len(listed)} listed volumes are missing: {', '.join(missing[:5])}{more}. Mend the "
            "table, or leave them out (--bad-files skip)."
        )
    return [LeftOut(name, "the volume is missing") for name in missing]


def _require_eyepy() -> None:
    require_package("eyepy", 'OCT volumes need eyepy, which is not installed: run `pip install "eyepy>=0.21"`.')


def _volumes(path: Path) -> Iterator[Volume]:
    """The volumes of a file.

    Raises:
        DataError: It cannot be read.
    """
    from construct import ConstructError

    try:
        yield from _vol(path) if path.suffix.lower() == ".vol" else _e2e(path)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, struct.error, ConstructError) as error:
        raise DataError(f"{path} cannot be read ({error}): export it again, or leave it out.") from error


def _vol(path: Path) -> Iterator[Volume]:
    from eyepy.io import HeVolReader

    reader = HeVolReader(path)
    header = reader.parsed_file
    patient = header.patient_id.strip(" \0")
    if patient.casefold() in ("", "unknown"):
        patient = f"pid {header.pid}" if header.pid else ""
    yield Volume(patient, header.scan_position.strip(" \0"), _levels(reader.volume))


def _e2e(path: Path) -> Iterator[Volume]:
    from eyepy.io import HeE2eReader

    # Its numbers of patients are those of one database, so the table must name the patient.
    with HeE2eReader(path) as reader:
        if len(reader.patients) > 1:
            raise ValueError("it holds several patients: export each alone")
        for volume in reader.volumes:
            yield Volume("", str(volume.meta.get("laterality", "")), _levels(volume))


def _levels(volume: object) -> list[NDArray[np.uint8]]:
    scans = [np.asarray(scan.data) for scan in volume]  # type: ignore[attr-defined]
    if any(scan.dtype != np.uint8 or scan.ndim != 2 for scan in scans):
        raise ValueError("its scans are not of 8 bits")
    return scans


SET = PublicSet(
    name="oct_volumes",
    survey_of=survey,
    title="OCT volumes as scanners export them",
    layout=(
        "any folder of `.vol` and `.e2e` files (Heidelberg), and `--labels TABLE` (file; label, patient, scan "
        "where there are some)"
    ),
    grades="from the labels, or `--grades`",
    patients="the table, else the header of a `.vol` file; under a keyed hash",
    splits=ALL_BY_SEED,
    rules=(
        "each B-scan is written as a PNG file with a hashed name; it has its volume's label, or its own where "
        "the table says which scan"
    ),
    options=("labels", "grades", "ungradable", "unlabelled"),
    keyed=True,
    modality="oct",
    published=False,
)
