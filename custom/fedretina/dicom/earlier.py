"""What was answered of a study before, kept without its pixels, to be answered again with pictures that come later."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedretina.data.dicom_file import head_of
from fedretina.errors import DataError, StateError
from fedretina.prediction.photographs import DicomPicture
from fedretina.prediction.predictor import Answering, ImageRow
from fedretina.storage import read_json, write_bytes, write_json
from fedretina.uncertainty.referral import Referral

_ROWS = "rows.json"
_OWN = 0o600


class Answered(NamedTuple):
    """Pictures of one study and their answers.

    Attributes:
        rows: An answer to each picture.
        pictures: The pictures, by the names in `rows`.
    """

    rows: tuple[ImageRow, ...]
    pictures: Mapping[str, DicomPicture]


def with_earlier(now: Answered, folder: Path, model: Answering) -> Answered:
    """Add to answers those to pictures of the study that came before, but for pictures that have come anew.

    Args:
        now: The answers of today.
        folder: Where `keep` has put the earlier ones; it may be missing.
        model: What answers.

    Raises:
        DataError: What was kept is damaged, or another model has said it.
    """
    if not (folder / _ROWS).exists():
        return now
    came = {one.file for one in now.pictures.values()}
    found = model.find(folder).dicom
    try:
        record = read_json(folder / _ROWS)
        rows = [_row(said) for said in record["rows"] if said["of"] not in came]
        pictures = {row.file: found[row.file] for row in rows}
    except (StateError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"what was kept of earlier answers in {folder} is damaged: look at the study yourself."
        ) from error
    if rows and record["model"] != model.operating.model_digest:
        raise DataError(f"another model answered what is kept in {folder}: send the whole study again.")
    return Answered((*rows, *now.rows), {**pictures, **now.pictures})


def keep(answered: Answered, without: Set[str], folder: Path, model: Answering) -> None:
    """Keep answers, and of their files all but the pixels; what was kept before of the study goes.

    A process that is killed in between leaves what was kept before, whole.

    Args:
        answered: All that the study was answered with, earlier ones among it.
        without: Names of pictures to which there is no answer in kind.
        folder: Of the study; it is made, for its owner alone.
        model: What answered.

    Raises:
        StateError: The disk is full or the folder not writable.
    """
    kept = [row for row in answered.rows if row.file not in without]
    names = {row.file: answered.pictures[row.file] for row in kept}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in _paths(names.values()):
            if path.parent != folder:
                write_bytes(folder / path.name, head_of(path), _OWN)
        rows = [_record(row, names[row.file].file) for row in kept]
        write_json(folder / _ROWS, {"model": model.operating.model_digest, "rows": rows})
        os.utime(folder)  # from now on it is kept
    except OSError as error:
        raise StateError(f"{folder} cannot be written ({error.strerror}): make room.") from error


def _paths(pictures: Iterable[DicomPicture]) -> Sequence[Path]:
    return sorted({one.frame.path for one in pictures})


def _record(row: ImageRow, file: str) -> dict[str, Any]:
    return {
        "of": file,
        "file": row.file,
        "grade": row.grade,
        "probabilities": None if row.probabilities is None else row.probabilities.tolist(),
        "uncertainty": row.uncertainty,
        "reasons": list(row.referral.reasons),
        "fault": row.fault,
        "grades": row.grades,
    }


def _row(said: Mapping[str, Any]) -> ImageRow:
    probabilities, reasons = said["probabilities"], tuple(said["reasons"])
    return ImageRow(
        said["file"],
        said["grade"],
        None if probabilities is None else np.asarray(probabilities, np.float64),
        said["uncertainty"],
        Referral(bool(reasons), reasons),
        said["fault"],
        said["grades"],
    )
