"""The manifest: one CSV row per image, with its label, its patient and its split."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from fedretina.data.csv_table import csv_rows
from fedretina.errors import DataError
from fedretina.settings.scheme import GradingScheme

SPLITS = ("train", "val", "test")
PRETRAIN = "pretrain"
"""All images of train, with a label or without; no row says so."""
UNLABELLED = -1
COLUMNS = ("file", "label", "patient", "split")


class RawRow(NamedTuple):
    """A row as it stands in the CSV: `file` relative to the image root with '/', `label` as text, "" where none."""

    file: str
    label: str
    patient: str
    split: str


class Record(NamedTuple):
    """A checked row: `label` is the class, 0 to `num_classes` - 1, or `UNLABELLED`."""

    file: str
    label: int
    patient: str
    split: str


@dataclass(frozen=True)
class Manifest:
    """The checked rows of a site, in the order of the file.

    Attributes:
        records: All rows.
        scheme: The grading scheme that their labels were read with; None where they were not read.
    """

    records: tuple[Record, ...]
    scheme: GradingScheme | None

    def of(self, split: str) -> tuple[Record, ...]:
        """The labelled rows of a split; for "pretrain" those of train, then its rows without a label."""
        if split == PRETRAIN:
            return (*self.of("train"), *self.unlabelled())
        return tuple(record for record in self.records if record.split == split and record.label != UNLABELLED)

    def unlabelled(self) -> tuple[Record, ...]:
        """The rows of train without a label, which count for label-free pre-training alone."""
        return tuple(record for record in self.records if record.split == "train" and record.label == UNLABELLED)

    def digest(self) -> str:
        """SHA-256 over files, classes, patients and splits, whatever the order of the rows; it reads no image."""
        return hashlib.sha256(json.dumps(sorted(self.records)).encode()).hexdigest()

    def counts(self) -> dict[str, list[int]]:
        """Labelled images per grade, for each split; no grade where the labels were not read."""
        table = {split: [0] * (self.scheme.num_classes if self.scheme else 0) for split in SPLITS}
        for split, row in table.items():
            for record in self.of(split):
                row[record.label] += 1
        return table


def require_inside(file: str) -> str:
    """Return the file name in plain form ('./a.png' is 'a.png') when it cannot leave the image root.

    Only the name is judged: a symbolic link inside the root is the hospital's own doing and is followed.

    Raises:
        DataError: The name is empty, absolute, holds '..' or a control character.
    """
    plain = PurePosixPath(file)
    if not plain.parts:
        raise DataError("a file name is empty: write the path relative to the image root.")
    if plain.is_absolute() or PureWindowsPath(file).drive or ".." in plain.parts or not file.isprintable():
        raise DataError(f"file {file!r} could leave the image root: write a relative path without '..'.")
    return str(plain)


def one_spelling(patients: Iterable[str]) -> dict[str, str]:
    """Which spelling stands for each patient: names that differ in capital letters or blanks alone are one patient.

    Two lists of one hospital often spell a pseudonym differently ("P1", "p1"). Taken for two patients, its images could
    be trained on and tested on; two patients taken for one do no harm but that they share a split.

    Returns:
        Each name as given, to the first in alphabetical order of those that are the same patient.
    """
    spellings: dict[str, set[str]] = defaultdict(set)
    for patient in set(patients):
        spellings["".join(patient.casefold().split())].add(patient)
    return {patient: min(same) for same in spellings.values() for patient in same}


def read_manifest(path: Path, scheme: GradingScheme | None) -> Manifest:
    """Read and check a manifest.

    Args:
        path: CSV with a header row, as `csv_rows` reads it; other columns are ignored.
        scheme: What the labels mean; None reads no label, so that every row is unlabelled.

    Raises:
        DataError: The file is missing or no CSV; a column is missing; or a row, named by its number in the
            file (the header is 1), has an unknown split, a label outside the scheme, none outside train, no patient,
            a patient of another split (however it is spelled, see `one_spelling`), a file named before, or a file
            outside the root.
    """
    records: list[Record] = []
    seen: dict[str, int] = {}
    homes: dict[str, tuple[str, int, str]] = {}
    rows = raw_rows(path)
    patients = one_spelling(row["patient"] for _, row in rows)
    for number, row in rows:
        try:
            record = _record(row, scheme, patients[row["patient"]])
        except DataError as error:
            raise DataError(f"{path}, row {number}: {error}") from error
        if record.file in seen:
            raise DataError(
                f"{path}, row {number}: file {record.file!r} stands in row {seen[record.file]} already: keep one."
            )
        own = row["patient"]
        home, first, spelled = homes.setdefault(record.patient, (record.split, number, own))
        if home != record.split:
            other = "" if spelled == own else f" as {spelled!r}"
            cure = "" if spelled == own else "; if they are two patients, give one another name"
            raise DataError(
                f"{path}, row {number}: patient {own!r} is in {record.split}, but{other} in {home} in row {first}: "
                f"put all images of a patient into one split{cure}."
            )
        seen[record.file] = number
        records.append(record)
    if not records:
        raise DataError(f"{path} has a header but no rows: list at least one image per split.")
    return Manifest(tuple(records), scheme)


def write_manifest(path: Path, rows: Iterable[RawRow]) -> None:
    """Write rows with raw labels as a manifest, atomically.

    Raises:
        DataError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as handle:
            writer = csv.writer(handle, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows((row.file, row.label, row.patient, row.split) for row in rows)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DataError(f"{path} was not written ({error}): choose a folder that you may write to.") from error


def raw_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """The rows of a manifest with their line numbers, blanks stripped, unchecked but for what `csv_rows` refuses.

    Raises:
        DataError: The file is missing or no CSV, or a column is missing.
    """
    try:
        return csv_rows(path, COLUMNS)
    except FileNotFoundError as error:
        raise DataError(f"the manifest {path} is missing: mend the path, or leave it out for phantoms.") from error
    except OSError as error:
        raise DataError(
            f"the manifest {path} cannot be read ({error.strerror}): mend its path or its rights."
        ) from error


def _record(row: dict[str, str], scheme: GradingScheme | None, patient: str) -> Record:
    file, label, _, split = (row[column] for column in COLUMNS)
    if split not in SPLITS:
        raise DataError(f"split is {split!r}: write one of {list(SPLITS)}.")
    if not patient:
        raise DataError("the patient is empty: where none is known, repeat the name of the file.")
    return Record(require_inside(file), _class(label, split, scheme), patient, split)


def _class(label: str, split: str, scheme: GradingScheme | None) -> int:
    if scheme is None or (not label and split == "train"):
        return UNLABELLED
    if not label:
        raise DataError(f"the label is empty: only images of train may have none, found one in {split}.")
    return scheme.index(label)
