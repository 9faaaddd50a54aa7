"""A folder of images and a table of their grades with titles of its own, as hospitals keep them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from fedretina.data.manifest import cell_value
from fedretina.data.readers.class_folders import PARTS, pattern_of, with_patients
from fedretina.data.readers.image_folder import ImageFolder, loose, no_patients
from fedretina.data.readers.scheme_of import scheme_of
from fedretina.data.readers.survey import ImportSettings, LeftOut, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import Row, read_table
from fedretina.errors import DataError, SettingsError
from fedretina.plurals import counted
from fedretina.settings.columns import COLUMNS, Column
from fedretina.settings.scheme import GradingScheme, preset, whole_label

_OWN = ("file", "label", "patient", "split")
_CURE = "Say which column holds it, such as --column label=TITLE."


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read the images that a table lists; raw labels are its grades as they stand.

    A file is named relative to `root`, with or without its ending, in any case, and with Windows' separator too.

    Args:
        root: The folder of the images.
        settings: `labels`, the table; `columns`, its titles of file, label, patient, split and of a manifest's optional
            columns, of which those alone are read that are named; `patient_pattern` where no column names the patient;
            `unlabelled`; `scheme`, `grades` and `ungradable` as in `scheme_of`.
        out: Not used.

    Raises:
        DataError: The table is missing or damaged, lacks a column, or holds a grade, a split or a word of an optional
            column that is none.
        SettingsError: No table is named, or a column that there is not.
    """
    table = settings.labels
    if table is None:
        raise SettingsError("a table of the images is needed (--labels FILE): CSV or Excel, one row per image.")
    titles = _titles(settings.columns)
    pattern = pattern_of(settings.patient_pattern)
    needed = [name for name in ("file", "label", *settings.columns) if name in titles]
    may_be_empty = [name for name in dict.fromkeys(needed) if name != "file"]
    rows = read_table(
        table,
        [titles["file"]],
        [title for name, title in titles.items() if name not in may_be_empty and name != "file"],
        may_be_empty=[titles[name] for name in may_be_empty],
        cure=_CURE,
        whole=True,
    )
    cells = [{name: row.cells[title] for name, title in titles.items()} for row in rows]
    if not any(cell["label"] for cell in cells) and settings.unlabelled == "skip":
        raise DataError(f"{table}: no row has a grade in the column {titles['label']!r}. {_CURE}")
    labels = {whole_label(cell["label"]) for cell in cells}
    scheme = scheme_of(labels, settings)
    _require_labels(table, titles["label"], rows, preset(scheme) if isinstance(scheme, str) else scheme)
    folders = _Folders(root)
    found, left_out = [], []
    for row, cell in zip(rows, cells, strict=True):
        file = folders.find(cell["file"])
        if not cell["label"] and settings.unlabelled == "skip":
            left_out.append(LeftOut(file, "it has no label"))
            continue
        beside = _beside(table, row, cell)
        part = _part(table, row, cell["split"])
        found.append(Photograph(file, whole_label(cell["label"]), cell["patient"] or file, part, beside))
    if len({photograph.part is None for photograph in found}) > 1:
        raise DataError(f"{table}: some rows name a split and some do not: fill all of that column, or rename it.")
    warnings = []
    if pattern is not None:
        found = with_patients(root, found, pattern)
    elif not any(cell["patient"] for cell in cells):
        warnings.append(f"{no_patients()} Give --column patient=TITLE or --patient-pattern if either tells.")
    elif without := sum(not cell["patient"] for cell in cells):
        warnings.append(f"{counted(without, 'row names', 'rows name')} no patient: each of their images is its own.")
    if unused := folders.unused():
        named = counted(unused, "image that no row names stays", "images that no row names stay")
        warnings.append(f"{named} out.")
    return Survey(tuple(found), scheme, tuple(left_out), tuple(warnings))


def _titles(columns: Mapping[str, str]) -> dict[str, str]:
    known = (*_OWN, *COLUMNS)
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise SettingsError(f"--column {unknown[0]}=...: there is no such column: use one of {list(known)}.")
    return {name: name for name in _OWN} | dict(columns)


def _require_labels(table: Path, title: str, rows: list[Row], scheme: GradingScheme | None) -> None:
    if scheme is None:
        return
    wrong = [row for row in rows if row.cells[title] and whole_label(row.cells[title]) not in scheme.labels]
    if wrong:
        more = f" (and {counted(len(wrong) - 1, 'more row')})" if len(wrong) > 1 else ""
        raise DataError(
            f"{table}, row {wrong[0].number}{more}: {title!r} is {wrong[0].cells[title]!r}, and the grading scheme has "
            f"{list(scheme.labels)}: correct the row, or name another scheme (--scheme, --grades)."
        )


class _Folders:
    """The folders that a table's files lie in, found as `ImageFolder` finds files: an exact name goes first."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._images: dict[str, ImageFolder] = {}
        self._places: dict[str, str] = {"": ""}
        self._below: dict[str, dict[str, list[str]]] = {}

    def find(self, named: str) -> str:
        """The path of a file as on disk, relative to the root; as listed where there is no such file.

        Raises:
            DataError: Several folders or files could be meant.
        """
        plain = PurePosixPath(named.replace("\\", "/"))
        place = self._place("" if str(plain.parent) == "." else str(plain.parent))
        if place not in self._images:  # two spellings of a folder are one
            self._images[place] = ImageFolder(self._root, [place])
        return self._images[place].find(plain.name)

    def unused(self) -> int:
        """How many images of these folders no row has named."""
        return sum(folder.unused() for folder in self._images.values())

    def _place(self, listed: str) -> str:
        if listed not in self._places:
            self._places[listed] = listed if (self._root / listed).is_dir() else self._close(PurePosixPath(listed))
        return self._places[listed]

    def _close(self, listed: PurePosixPath) -> str:
        above = "" if str(listed.parent) in (".", str(listed)) else self._place(str(listed.parent))
        if above not in self._below:
            self._below[above] = _subfolders(self._root / above)
        close = self._below[above].get(loose(listed.name), [])
        exact = [name for name in close if name == listed.name]
        if len(close) > 1 and not exact:
            raise DataError(f"the folder {str(listed)!r} could be any of {', '.join(close[:5])}: write its exact name.")
        return str(PurePosixPath(above, *(exact or close or [listed.name])))


def _subfolders(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        for name in sorted(path.name for path in folder.iterdir() if path.is_dir()):
            found.setdefault(loose(name), []).append(name)
    except OSError:
        return {}
    return found


def _part(table: Path, row: Row, split: str) -> str | None:
    if not split:
        return None
    if split.lower() not in PARTS:
        raise DataError(
            f"{table}, row {row.number}: split is {split!r}: write train, val or test, or rename that column to have "
            "the patients divided by --fractions."
        )
    return PARTS[split.lower()]


def _beside(table: Path, row: Row, cell: Mapping[str, str]) -> dict[Column, str]:
    try:
        return {name: cell_value(name, cell[name]) for name in COLUMNS if name in cell}
    except DataError as error:
        raise DataError(f"{table}, row {row.number}: {error}") from error


SET = PublicSet(
    name="own_table",
    survey_of=survey,
    title="a folder of images and a table of your own",
    layout="any folder of images, and `--labels TABLE`, whose titles `--column file=TITLE` and so on name",
    grades="from the labels, or `--scheme`, `--grades`",
    patients="`--column patient=TITLE` or `--patient-pattern`, else each image is its own",
    splits="a column split (`--column split=TITLE`), where there is one",
    rules="a file may be named with or without its ending; images that no row names stay out",
    options=("labels", "columns", "grades", "ungradable", "patient_pattern", "unlabelled"),
    modality=None,
    published=False,
)
