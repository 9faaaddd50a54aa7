"""The manifest: one CSV row per image, with its label, its patient and its split.

All tables of a hospital are read here (`csv_rows`, `csv_lines`), as spreadsheets save them: commas, semicolons or tabs,
UTF-8 or UTF-16, headers in any case.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from fedretina.errors import DataError
from fedretina.settings.columns import COLUMNS as COLUMNS_BESIDE
from fedretina.settings.columns import LONGEST, MOST_VALUES, Column
from fedretina.settings.scheme import GradingScheme
from fedretina.storage import write_output

SPLITS = ("train", "val", "test")
PRETRAIN = "pretrain"
"""All images of train, with a label or without; no row says so."""
UNLABELLED = -1
COLUMNS = ("file", "label", "patient", "split")
SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_EXCEL_SAYS = re.compile(r'"?sep=([^\r\n"])"?\1*(?:\r\n|\r|\n|$)', re.IGNORECASE)
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # .xlsx and .ods, .xls


class RawRow(NamedTuple):
    """A row as it stands in the CSV.

    Attributes:
        file: Relative to the image root with '/'.
        label: As text, "" where none.
        patient: The patient.
        split: The split.
        beside: Its cells in the optional columns, in their order.
    """

    file: str
    label: str
    patient: str
    split: str
    beside: tuple[str, ...] = ()


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
        columns: Optional columns that were read, by name: the value of each file, "" where its cell is empty. No part
            of the digest: they change no image, label, patient or split.
    """

    records: tuple[Record, ...]
    scheme: GradingScheme | None
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

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


def read_manifest(path: Path, scheme: GradingScheme | None, columns: Sequence[Column] = ()) -> Manifest:
    """Read and check a manifest.

    Args:
        path: CSV with a header row, as `csv_rows` reads it; other columns are ignored.
        scheme: What the labels mean; None reads no label, so that every row is unlabelled.
        columns: Optional columns that are read; they must be there.

    Raises:
        DataError: The file is missing or no CSV; a column is missing; or a row, named by its number in the
            file (the header is 1), has an unknown split, a label outside the scheme, none outside train, no patient,
            a patient of another split (however it is spelled, see `one_spelling`), a file named before, a file outside
            the root, or a cell of an optional column that is none of its words.
    """
    records: list[Record] = []
    seen: dict[str, int] = {}
    homes: dict[str, tuple[str, int, str]] = {}
    rows = raw_rows(path, columns)
    patients = one_spelling(row["patient"] for _, row in rows)
    cells: dict[str, dict[str, str]] = {column: {} for column in columns}
    told: dict[tuple[str, str], tuple[str, int]] = {}
    for number, row in rows:
        try:
            record = _record(row, scheme, patients[row["patient"]])
            for column in columns:
                value = cell_value(column, row[column])
                cells[column][record.file] = value
                if COLUMNS_BESIDE[column].of_patient and value:
                    before, first = told.setdefault((column, record.patient), (value, number))
                    if before != value:
                        raise DataError(
                            f"the {column} of its patient is another one in row {first}: write the same in all rows of "
                            "a patient, or leave it empty where it is not known."
                        )
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
    for title, found in cells.items():
        many = len(set(found.values()) - {""})
        if many > MOST_VALUES:
            raise DataError(
                f"{path}: the column {title} holds {many} different words, at most {MOST_VALUES} make subgroups: "
                "write the model and not a serial number, or take it out of data.columns."
            )
    return Manifest(tuple(records), scheme, cells)


def cell_value(column: Column, cell: str) -> str:
    """What a cell of an optional column means; "" where it is empty.

    Raises:
        DataError: It is none of the column's words, or longer than a word of the site's own may be.
    """
    rule = COLUMNS_BESIDE[column]
    if not cell or rule.words:
        value = rule.words.get("".join(cell.casefold().replace("–", "-").split()), "")
        if value or not cell:
            return value
        raise DataError(f"{column} is {cell!r}: write one of {list(rule.words)}, or nothing where it is not known.")
    if len(cell) > LONGEST or not cell.isprintable():
        raise DataError(
            f"{column} is {cell[:LONGEST]!r}: write a plain name of at most {LONGEST} characters, or nothing."
        )
    return cell


def write_manifest(path: Path, rows: Iterable[RawRow], columns: Sequence[str] = ()) -> None:
    """Write rows with raw labels as a manifest, atomically.

    Args:
        path: The manifest.
        rows: Its rows.
        columns: Names of the optional columns, of which each row has a cell.

    Raises:
        DataError: The file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*COLUMNS, *columns))
    writer.writerows((row.file, row.label, row.patient, row.split, *row.beside) for row in rows)
    write_output(path, text.getvalue())


def raw_rows(path: Path, columns: Sequence[str] = ()) -> list[tuple[int, dict[str, str]]]:
    """The rows of a manifest with their line numbers, blanks stripped, unchecked but for what `csv_rows` refuses.

    Args:
        path: The manifest.
        columns: Optional columns that are read as well.

    Raises:
        DataError: The file is missing or no CSV, or a column is missing.
    """
    try:
        return csv_rows(path, (*COLUMNS, *columns))
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


class Line(NamedTuple):
    """A row of a table: the line of the file where it begins, from 1, and its cells as they stand."""

    number: int
    cells: list[str]


def csv_lines(path: Path, names: Iterable[str], encodings: Sequence[str] = ("utf-8-sig",)) -> tuple[str, list[Line]]:
    """Read the rows of a table, its header first; rows without a filled cell are passed over.

    The separator is the one that finds most of the names in the header, of equals that which finds most titles; no row
    is looked at for it, so the same header is always read the same way. A first line such as `sep=;`, from which
    Excel takes the separator, decides it and is no row. A file that begins with the mark of UTF-16 is read as such.

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

    def known(separator: str) -> tuple[int, int]:
        try:
            header = next((line.cells for line in _parsed(path, text, separator)), [])
        except DataError:
            return -1, 0
        return len(wanted & {plain_title(title) for title in header}), len(header)

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
    require_width(path, separator, lines)
    rows = []
    for number, cells in lines[1:]:
        row = {name: cells[at].strip() if at < len(cells) else "" for name, at in places.items()}
        if any("\n" in cell or "\r" in cell for cell in row.values()):
            raise _unbalanced(path, number)
        rows.append((number, dict.fromkeys(optional, "") | row))
    return rows


def require_width(path: Path, separator: str, lines: Sequence[Line]) -> None:
    """Check that no row has a filled cell behind the header's last: cells before it may be under a wrong title.

    Raises:
        DataError: A row has one.
    """
    width = len(lines[0].cells) if lines else 0
    for number, cells in lines[1:]:
        if any(cell.strip() for cell in cells[width:]):
            raise DataError(
                f"{path}, row {number}: it has {len(cells)} cells and the header {width}: write quotation marks "
                f"around a cell that holds {SEPARATORS[separator]}, or remove what is too much."
            )


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
    # Only a manifest has a split, which no table of a hospital's own has.
    cures += ["`fedretina data import own_table` makes a manifest of such a table"] if "split" in missing else []
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
