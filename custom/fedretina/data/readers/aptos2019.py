"""APTOS 2019 Blindness Detection, as the Kaggle archive unpacks: train.csv and train_images/."""

from __future__ import annotations

from pathlib import Path

from fedretina.data.manifest import RawRow
from fedretina.data.readers import label_rows, require_images
from fedretina.data.splits import split_by_patient
from fedretina.errors import DataError


def read(root: Path, seed: int, fractions: tuple[float, float, float] = (0.7, 0.15, 0.15)) -> list[RawRow]:
    """Read the labelled part; raw labels are ICDR grades 0 to 4.

    The set names no patients: each image is its own patient, so two eyes of a patient may fall into
    different splits, and figures on this set are too good by an unknown amount. The official test part has
    no public labels, so test is cut from the labelled part.

    Raises:
        DataError: train.csv is missing or damaged, or an image is missing (up to five are named).
    """
    pairs = label_rows(root / "train.csv", "id_code", "diagnosis")
    files = [f"train_images/{name}.png" for name, _ in pairs]
    require_images(root, files)
    names = [name for name, _ in pairs]
    splits = split_by_patient(names, [_grade(raw) for _, raw in pairs], fractions, seed)
    return [RawRow(file, raw, name, split) for file, (name, raw), split in zip(files, pairs, splits, strict=True)]


def _grade(raw: str) -> int:
    if raw not in {"0", "1", "2", "3", "4"}:
        raise DataError(f"train.csv holds the diagnosis {raw!r}: APTOS 2019 has 0 to 4.")
    return int(raw)
