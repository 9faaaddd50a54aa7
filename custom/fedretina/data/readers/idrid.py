"""IDRiD, part B (disease grading), as its archive unpacks."""

from __future__ import annotations

from pathlib import Path

from fedretina.data.manifest import RawRow
from fedretina.data.readers import label_rows, require_images
from fedretina.data.splits import split_by_patient
from fedretina.errors import DataError, SettingsError

_PART = "B. Disease Grading"
_IMAGES = "1. Original Images"
_LABELS = "2. Groundtruths"
_TRAIN = ("a. Training Set", "a. IDRiD_Disease Grading_Training Labels.csv")
_TEST = ("b. Testing Set", "b. IDRiD_Disease Grading_Testing Labels.csv")


def read(root: Path, seed: int, fractions: tuple[float, float, float] = (0.7, 0.15, 0.15)) -> list[RawRow]:
    """Read the grading part; raw labels are ICDR grades 0 to 4.

    The official test split is kept, and val is carved from the official train split, so of `fractions` only
    the ratio of val to train counts. The set names no patients: each image is its own patient. The same names
    (IDRiD_001, ...) stand for other images in train and test, so the patient carries the part.

    Args:
        root: The folder that holds "B. Disease Grading", or that folder itself.
        seed: Of the val split.
        fractions: Shares of train, val and test; the last is not used.

    Raises:
        DataError: A label file is missing or damaged, or an image is missing (up to five are named).
        SettingsError: Train has no share.
    """
    if fractions[0] <= 0 or fractions[1] < 0:
        raise SettingsError(f"fractions are {fractions}: train needs a share above 0, val 0 or more.")
    prefix = f"{_PART}/" if (root / _PART).is_dir() else ""
    train = _part(root, prefix, *_TRAIN)
    test = _part(root, prefix, *_TEST)
    require_images(root, [file for file, _ in train + test])
    rest = fractions[0] + fractions[1]
    patients = [f"train/{Path(file).stem}" for file, _ in train]
    grades = [int(raw) for _, raw in train]
    splits = split_by_patient(patients, grades, (fractions[0] / rest, fractions[1] / rest, 0.0), seed)
    rows = [
        RawRow(file, raw, patient, split) for (file, raw), patient, split in zip(train, patients, splits, strict=True)
    ]
    return rows + [RawRow(file, raw, f"test/{Path(file).stem}", "test") for file, raw in test]


def _part(root: Path, prefix: str, folder: str, labels: str) -> list[tuple[str, str]]:
    pairs = label_rows(root / prefix / _LABELS / labels, "Image name", "Retinopathy grade")
    for name, raw in pairs:
        if raw not in {"0", "1", "2", "3", "4"}:
            raise DataError(f"{labels}: {name} has the grade {raw!r}: IDRiD has 0 to 4.")
    return [(f"{prefix}{_IMAGES}/{folder}/{name}.jpg", raw) for name, raw in pairs]
