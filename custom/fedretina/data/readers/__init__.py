"""Readers of public data sets as they unpack; each turns a folder into rows of a manifest."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from fedretina.data.manifest import RawRow
from fedretina.errors import DataError, SettingsError

__all__ = ["READERS", "RawRow", "Reader", "label_rows", "reader", "require_images"]

READERS = ("aptos2019", "idrid")


class Reader(Protocol):
    """Reads a public layout: files relative to `root`, raw labels as published, splits seeded."""

    def __call__(
        self, root: Path, seed: int, fractions: tuple[float, float, float] = (0.7, 0.15, 0.15)
    ) -> list[RawRow]:
        """Return one row an image."""


def reader(name: str) -> Reader:
    """The reader of a public set by its name.

    Raises:
        SettingsError: There is no reader of that name.
    """
    if name not in READERS:
        raise SettingsError(f"there is no reader {name!r}: use one of {list(READERS)}, or write a manifest.")
    return cast(Reader, import_module(f"{__name__}.{name}").read)


def label_rows(path: Path, name: str, label: str) -> list[tuple[str, str]]:
    """Read (name, raw label) from two columns of a published label file, blanks stripped.

    Raises:
        DataError: The file or a column is missing, or a row has an empty cell.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as handle:
            rows = csv.reader(handle)
            header = [cell.strip() for cell in next(rows, [])]
            if name not in header or label not in header:
                raise DataError(f"{path}: expected the columns {name!r} and {label!r}, found {header}.")
            at, grade = header.index(name), header.index(label)
            found = []
            for row in rows:
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) <= max(at, grade) or not row[at].strip() or not row[grade].strip():
                    raise DataError(f"{path}, row {rows.line_num}: name or label is empty: mend or remove the row.")
                found.append((row[at].strip(), row[grade].strip()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}): unpack the set again and point to its folder.") from error
    if not found:
        raise DataError(f"{path} lists no image: unpack the set again.")
    return found


def require_images(root: Path, files: Sequence[str]) -> None:
    """Check that each labelled image is there.

    Raises:
        DataError: Some are missing; names up to five.
    """
    missing = [file for file in files if not (root / file).is_file()]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise DataError(
            f"{len(missing)} of {len(files)} labelled images are missing under {root}: "
            f"{', '.join(missing[:5])}{more}. Unpack the set again, or remove their rows."
        )
