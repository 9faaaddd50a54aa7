"""Published label lists: CSV as it comes, or the first sheet of an Excel file, as rows of named cells."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.data.manifest import Line, csv_lines, plain_title, require_width
from fedretina.errors import DataError
from fedretina.settings.columns import Column
from fedretina.settings.scheme import whole_label

_INSTALL = {"openpyxl": 'pip install "openpyxl>=3.1"', "xlrd": 'pip install "xlrd>=2"'}


class Row(NamedTuple):
    """A row of a table: its number in the file (the header is 1) and its cells by column, blanks stripped."""

    number: int
    cells: Mapping[str, str]


def read_table(
    path: Path,
    columns: Sequence[str],
    optional: Sequence[str] = (),
    encodings: Sequence[str] = ("utf-8-sig",),
    may_be_empty: Sequence[str] = (),
    cure: str = "Unpack the set again.",
    whole: bool = False,
) -> list[Row]:
    """Read some columns of a table that has a header.

    Header names are compared without regard to case and to blanks around them. "a|b" names a column that is called
    a or b; its cells come under a. CSV is read as `csv_lines` does; whole numbers of an Excel sheet come as "3", not
    "3.0". Empty rows are passed over.

    Args:
        path: `.csv`, `.xls` or `.xlsx`.
        columns: Must be there, and be filled in each row.
        optional: May be missing or empty; their cells are then "".
        encodings: Tried in order, for CSV.
        may_be_empty: Must be there; their cells may be empty.
        cure: What to do where a column is missing.
        whole: Whether a name is one title as it stands, with any "|" in it.

    Raises:
        DataError: The file or a column is missing, a column is there twice, a row of a CSV has more cells than the
            header, a cell is empty, there is no row, or the library that reads Excel files is not installed.
    """
    names = (*columns, *may_be_empty, *optional)
    choices_of = {name: [name] if whole else name.split("|") for name in names}
    choices = [choice for name in names for choice in choices_of[name]]
    separator, lines = _lines(path, choices, encodings)
    titles = [plain_title(cell) for cell in lines[0].cells] if lines else []
    places = {name: _place(titles, choices_of[name]) for name in names}
    needed = (*columns, *may_be_empty)
    if any(places[name] is None for name in needed):
        wanted = " and ".join(" or ".join(map(repr, choices_of[name])) for name in needed)
        found = [cell.strip() for cell in lines[0].cells] if lines else []
        raise DataError(f"{path}: expected the columns {wanted}, found {found}. {cure}")
    twice = [titles[at] for at in places.values() if at is not None and titles.count(titles[at]) > 1]
    if twice:
        raise DataError(f"{path}: {titles.count(twice[0])} columns have the title {twice[0]!r}: keep one.")
    if separator:
        require_width(path, separator, lines)
    rows = []
    for number, line in lines[1:]:
        if not any(cell.strip() for cell in line):
            continue
        cells = {
            choices_of[name][0]: line[at].strip() if at is not None and at < len(line) else ""
            for name, at in places.items()
        }
        empty = [name for name in columns if not cells[choices_of[name][0]]]
        if empty:
            raise DataError(f"{path}, row {number}: {choices_of[empty[0]][0]!r} is empty: mend or remove the row.")
        rows.append(Row(number, cells))
    if not rows:
        raise DataError(f"{path} lists no image: unpack the set again.")
    return rows


def require_grade(path: Path, row: Row, column: str, allowed: Sequence[str]) -> str:
    """The grade of a row; "2.0" and "2,0", as some tools write it, is "2".

    Raises:
        DataError: The grade is not one of those that the set has.
    """
    raw = whole_label(row.cells[column])
    if raw not in allowed:
        raise DataError(
            f"{path}, row {row.number}: {column!r} is {row.cells[column]!r}, but the set has {allowed[0]} to "
            f"{allowed[-1]}: unpack the set again, or mend the row."
        )
    return raw


def oedema(path: Path, row: Row, column: str, worst: str) -> dict[Column, str]:
    """What a row says of macular oedema, as an optional column of a manifest: "yes" for the worst grade alone.

    Raises:
        DataError: The grade is not one of 0 to the worst.
    """
    if not row.cells[column]:
        return {}
    grade = require_grade(path, row, column, "0123456789"[: int(worst) + 1])
    return {"macular_oedema": "yes" if grade == worst else "no"}


def sex_and_age(sex: str, age: str) -> dict[Column, str]:
    """What a table says of a person, in the words of the optional columns; "" where it is not known.

    Ages below 2 are not known: they stand where nobody entered one.
    """
    told = {"f": "female", "m": "male"}.get(sex.lower(), sex.lower())
    whole = age.removesuffix(".0")
    years = int(whole) if whole.isdecimal() else 0
    bands = ("under_40", "from_40", "from_50", "from_60", "from_70")
    band = bands[min(max(years // 10 - 3, 0), len(bands) - 1)] if years > 1 else ""
    return {"sex": told if told in ("female", "male") else "", "age_band": band}


def _place(titles: Sequence[str], choices: Sequence[str]) -> int | None:
    for choice in choices:
        if choice.casefold() in titles:
            return titles.index(choice.casefold())
    return None


def _lines(path: Path, names: Sequence[str], encodings: Sequence[str]) -> tuple[str, list[Line]]:
    """What separates the cells, "" in an Excel file, where none can slip under another title; and the rows."""
    if path.suffix.lower() in (".xls", ".xlsx"):
        return "", [Line(number, [_text(cell) for cell in line]) for number, line in enumerate(_sheet(path), start=1)]
    try:
        return csv_lines(path, names, encodings)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): unpack the set again and point to its folder.") from error


def _sheet(path: Path) -> list[Sequence[Any]]:
    """The cells of the first sheet of an Excel file, by a library of the user's own."""
    if not path.is_file():
        raise DataError(f"{path} is missing: unpack the set again and point to its folder.")
    library = "xlrd" if path.suffix.lower() == ".xls" else "openpyxl"
    try:
        module = import_module(library)
    except ImportError as error:
        raise DataError(
            f"{path} is an Excel file, and {library} is not installed: run `{_INSTALL[library]}`, or save its first "
            f"sheet as {path.with_suffix('.csv').name} beside it."
        ) from error
    try:
        if library == "xlrd":
            sheet = module.open_workbook(str(path)).sheet_by_index(0)
            return [sheet.row_values(at) for at in range(sheet.nrows)]
        book = module.load_workbook(path, read_only=True, data_only=True)
        with contextlib.closing(book):
            return [list(line) for line in book.worksheets[0].iter_rows(values_only=True)]
    except Exception as error:  # of whatever kind: each library has many for a damaged file
        told = str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read ({told}): unpack the set again, or save it as CSV.") from error


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)
