"""Images that stand in a list twice: under one name, or as two files of the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fedretina.data.manifest import SPLITS
from fedretina.data.readers.survey import LeftOut, Photograph
from fedretina.errors import DataError


def without_repeats(photographs: Sequence[Photograph]) -> tuple[list[Photograph], list[LeftOut]]:
    """Keep one row of each file, a labelled one before others; none where its rows have different labels."""
    rows: dict[str, list[Photograph]] = {}
    for photograph in photographs:
        rows.setdefault(photograph.file, []).append(photograph)
    return _resolve(rows.values(), "the list names it twice", "the list names it twice, with different labels")


def without_copies(
    root: Path, photographs: Sequence[Photograph], tell: Callable[[int, int], None] = lambda done, of: None
) -> tuple[list[Photograph], list[LeftOut]]:
    """Keep one of several files of the same bytes; none where their labels differ.

    Public sets hold the same picture under several names, as several patients; one in train and one in test would
    be training on the test. Only equal bytes are found, not the same picture stored anew. A copy with a label
    stays before one without, then that in an official test part before that in val and train, and the first in the list
    before others. Empty files are left to the image
    cache, which names them.

    Args:
        root: Image root.
        photographs: Each file once.
        tell: Called after each file that had to be read: how many were, and of how many.

    Raises:
        DataError: A file cannot be read.
    """
    copies: dict[str, str] = {}
    alike = [file for files in _same_size(root, photographs) for file in files]
    for done, file in enumerate(alike, start=1):
        copies[file] = _digest(root / file)
        tell(done, len(alike))
    groups: dict[str, list[Photograph]] = {}
    for photograph in photographs:
        groups.setdefault(copies.get(photograph.file, photograph.file), []).append(photograph)
    return _resolve(groups.values(), "a copy of another image", "a copy of another image, with a different label")


def _resolve(groups: Iterable[list[Photograph]], same: str, different: str) -> tuple[list[Photograph], list[LeftOut]]:
    kept, left_out = [], []
    for group in groups:
        if len({photograph.label for photograph in group} - {""}) > 1:
            left_out += [LeftOut(photograph.file, different) for photograph in group]
            continue
        best = max(
            range(len(group)), key=lambda at: (group[at].label != "", SPLITS.index(group[at].part or "train"), -at)
        )
        kept.append(group[best])
        left_out += [LeftOut(photograph.file, same) for at, photograph in enumerate(group) if at != best]
    return kept, left_out


def _same_size(root: Path, photographs: Sequence[Photograph]) -> list[list[str]]:
    sizes: dict[int, list[str]] = {}
    for photograph in photographs:
        try:
            sizes.setdefault((root / photograph.file).stat().st_size, []).append(photograph.file)
        except OSError as error:
            raise DataError(f"{photograph.file} cannot be read ({error.strerror}): copy it again.") from error
    return [files for size, files in sizes.items() if size and len(files) > 1]


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): copy it again.") from error
