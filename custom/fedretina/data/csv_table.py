"""Tables as spreadsheets save them: commas, semicolons or tabs, UTF-8 or UTF-16, and headers in any case."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedretina.errors import DataError

SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_EXCEL_SAYS = re.compile(r'"?sep=([^\r\n"])"?\1*(?:\r\n|\r|\n|$)', re.IGNORECASE)
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # .xlsx and .ods, .xls


class Line(NamedTuple):
    """A row of a table: the line of the file where it begins, from 1, and its cells as they stand."""

    number: int
    cells: list[str]


def csv_lines(path: Path, names: Iterable[str], encodings: Sequence[str] = ("utf-8-sig",)) -> tuple[str, list[Line]]:
    """Read the rows of a table, its header first; rows without a filled cell are passed over.

    The separator is the one that finds most of the names in the header; no row is looked at for it, so the same header
    is always read the same way. A first line such as `sep=;`, from which Excel takes the separator, decides it and is
    no row. A file that begins with the mark of UTF-16 is read as such.

    Args:
        path: The file.
        names: Titles of columns that the header may have.
        encodings: Tried in order where the file is not UTF-16.

    Returns:
        The separator, and the rows.

    Raises:
        OSError: The file cannot be opened.
        DataError: It is a workbook, in another encoding, its first line names a separator that is none of
            `SEPARATORS`, or its quotation marks do not match.
    """
    text = _text(path, encodings)
    said = _EXCEL_SAYS.match(text)
    if said is not None:
        if said[1] not in SEPARATORS:
            raise DataError(
                f"{path}: the first line says that {said[1]!r} separates the columns: save it with commas, semicolons "
                "or tabs, and leave that line out or write it anew."
            )
        return said[1], list(_parsed(path, text[said.end() :], said[1], above=1))
    wanted = {plain_title(name) for name in names}

    def known(separator: str) -> int:
        try:
            header = next((line.cells for line in _parsed(path, text, separator)), [])
        except DataError:
            return -1
        return len(wanted & {plain_title(title) for title in header})

    separator = max(SEPARATORS, key=known)  # the first of equals: a comma
    return separator, list(_parsed(path, text, separator))


def csv_rows(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> list[tuple[int, dict[str, str]]]:
    """Read some columns of a table by their titles, whatever the case of these and the blanks around them.

    Args:
        path: CSV in UTF-8 (with or without a byte order mark) or in UTF-16 with one; other columns are ignored.
        columns: In small letters; must stand in the header, once each.
        optional: May stand there once; where they do not, their cells are "".

    Returns:
        The line where each row begins, and its cells by column, blanks stripped; cells that a short row lacks are "".

    Raises:
        OSError: The file cannot be opened.
        DataError: As `csv_lines`; or a column is missing or there twice, a row has more cells than the header, or one
            of the cells holds a line break.
    """
    separator, lines = csv_lines(path, (*columns, *optional))
    header = [plain_title(title) for title in lines[0].cells] if lines else []
    _require_columns(path, columns, optional, header, [cell.strip() for cell in lines[0].cells] if lines else [])
    places = {name: header.index(name) for name in (*columns, *optional) if name in header}
    rows = []
    for number, cells in lines[1:]:
        if any(cell.strip() for cell in cells[len(header) :]):
            raise DataError(
                f"{path}, row {number}: it has {len(cells)} cells and the header {len(header)}: write quotation marks "
                f"around a cell that holds {SEPARATORS[separator]}, or remove what is too much."
            )
        row = {name: cells[at].strip() if at < len(cells) else "" for name, at in places.items()}
        if any("\n" in cell or "\r" in cell for cell in row.values()):
            raise _unbalanced(path, number)
        rows.append((number, dict.fromkeys(optional, "") | row))
    return rows


def plain_title(title: str) -> str:
    """A column's title without regard to case and to blanks around it and in it."""
    return " ".join(title.split()).casefold()


def _require_columns(
    path: Path, columns: Sequence[str], optional: Sequence[str], header: list[str], shown: list[str]
) -> None:
    missing = [name for name in columns if name not in header]
    twice = [name for name in (*columns, *optional) if header.count(name) > 1]
    if not missing and not twice:
        return
    cures = [f"add {', '.join(missing)}"] if missing else []
    cures += [f"keep one {name}" for name in twice]
    cures += ["separate columns by commas, semicolons or tabs"] if len(shown) < 2 else []
    named = f"{', '.join(columns[:-1])} and {columns[-1]}"
    raise DataError(f"{path}: the header must name the columns {named} once each, found {shown}: {'; '.join(cures)}.")


def _text(path: Path, encodings: Sequence[str]) -> str:
    data = path.read_bytes()
    if data.startswith(_WORKBOOKS):
        raise DataError(f"{path} is a workbook and no CSV: save its sheet as CSV in UTF-8.")
    fault: UnicodeDecodeError | None = None
    for encoding in ("utf-16",) if data.startswith(_UTF16) else encodings:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            fault = error
            continue
        if "\0" in text:
            break
        return text
    if fault is None:
        raise DataError(f"{path} holds zero bytes and is no text that can be read: save it as CSV in UTF-8.")
    line = data[: fault.start].count(b"\n") + 1
    raise DataError(
        f"{path}, line {line}: the byte 0x{data[fault.start]:02x} is not {fault.encoding.upper()}, as in files of "
        "Windows-1252 or Latin-1: save it as CSV in UTF-8 (Excel calls it CSV UTF-8)."
    ) from fault


def _parsed(path: Path, text: str, separator: str, above: int = 0) -> Iterable[Line]:
    """The rows that hold something, numbered as in the file, `above` lines of which stand before the text."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    while True:
        number = above + reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise _unbalanced(path, number) from error
        if any(cell.strip() for cell in cells):
            yield Line(number, cells)


def _unbalanced(path: Path, number: int) -> DataError:
    return DataError(
        f"{path}, row {number}: a quotation mark is not closed, or stands within a cell that is in quotation marks: "
        "close it, write it twice within such a cell, or remove it."
    )
