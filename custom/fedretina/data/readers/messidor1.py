"""Messidor, as its twelve archives unpack: a table and a folder per base."""

from __future__ import annotations

import re
from pathlib import Path

from fedretina.data.readers.image_folder import ImageFolder, unlisted
from fedretina.data.readers.messidor_pairs import read_pairs, unpaired
from fedretina.data.readers.survey import ALL_BY_SEED, ImportSettings, LeftOut, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import oedema, read_table, require_grade
from fedretina.errors import DataError

_TABLE = re.compile(r"annotation[_ ]base([123][1234])(.*)\.(csv|xls|xlsx)", re.IGNORECASE)
_BASES = 12
_OEDEMA = "Risk of macular edema"

# The owner's errata of 31 August and 24 October 2016, for the tables of Base11 and Base13.
_CORRECTED = {
    "20051020_63045_0100_PP": "0",
    "20051020_64007_0100_PP": "3",
    "20051020_63936_0100_PP": "1",
    "20060523_48477_0100_PP": "3",
}
# The erratum of 16 August 2017: the same picture twice in Base33, under two names.
_DUPLICATES = {
    "20051202_54744_0400_PP": "20051202_55582_0400_PP",
    "20051202_40508_0400_PP": "20051202_41076_0400_PP",
    "20051202_41238_0400_PP": "20051202_48287_0400_PP",
    "20051202_41260_0400_PP": "20051202_48586_0400_PP",
    "20051202_54530_0400_PP": "20051202_55457_0400_PP",
    "20051205_33025_0400_PP": "20051202_55626_0400_PP",
    "20051202_55607_0400_PP": "20051202_54783_0400_PP",
    "20051202_41034_0400_PP": "20051202_48575_0400_PP",
    "20051205_35099_0400_PP": "20051205_32966_0400_PP",
    "20051202_54555_0400_PP": "20051202_55484_0400_PP",
    "20051205_35110_0400_PP": "20051205_32981_0400_PP",
    "20051202_54611_0400_PP": "20051202_55562_0400_PP",
    "20051202_55498_0400_PP": "20051202_54547_0400_PP",
}


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read all bases; raw labels are Messidor's retinopathy grades 0 to 3.

    The grades are Messidor's own (Decencière et al., Image Analysis & Stereology 2014) and not ICDR: 0 is normal, 1
    to 3 go by the number of microaneurysms and haemorrhages and by new vessels. The tables are Excel files; as CSV,
    saved under the same name, they need no library. The owner's errata are applied: four grades are corrected, and of
    two names for one picture one is left out, or both where their grades differ (one pair, the erratum of 9 February
    2018). We have the errata from the code of several others who cite the owner's page and agree; not from the page.

    The set names no patients. Messidor-2's messidor-2.csv, where it lies in the set's folder, pairs 1058 of the images.

    Args:
        root: The folder of the tables, with the images in BaseXY below it; or with tables and images in BaseXY.
        settings: None of them counts here.
        out: Not used.

    Raises:
        DataError: There is no table, or one is damaged.
    """
    pairs = read_pairs(root)
    found: list[Photograph] = []
    corrected = 0
    folders = []
    tables = _tables(root)
    for base, table in tables.items():
        below = table.parent.relative_to(root).as_posix().removeprefix(".")
        images = ImageFolder(root, [f"Base{base}", *([below] if below else []), "IMAGES", "images", ""])
        folders.append(images)
        for row in read_table(
            table, ["Image name", "Retinopathy grade"], optional=[_OEDEMA], encodings=("utf-8-sig", "cp1252")
        ):
            name = row.cells["Image name"]
            stem = Path(name).stem
            grade = require_grade(table, row, "Retinopathy grade", "0123")
            corrected += _CORRECTED.get(stem, grade) != grade
            patient = pairs.get(stem.lower(), stem)
            beside = oedema(table, row, _OEDEMA, "2")
            found.append(Photograph(images.find(name), _CORRECTED.get(stem, grade), patient, beside=beside))
    alone = sum(Path(photograph.file).stem.lower() not in pairs for photograph in found)
    warnings = [*unpaired(len(found), alone)]
    if len(tables) < _BASES:
        warnings.append(f"found {len(tables)} of the set's {_BASES} tables: the others are not read.")
    if corrected:
        warnings.append(f"{corrected} of the 4 grades that the owner's errata name were corrected.")
    if len({images.folder for images in folders}) == len(folders):
        warnings.extend(unlisted(*folders))
    kept, left_out = _without_duplicates(found)
    return Survey(tuple(kept), "normal_3stages", tuple(left_out), tuple(warnings))


def _tables(root: Path) -> dict[str, Path]:
    """The table of each base: CSV before Excel, an update before the original."""
    found: dict[str, list[tuple[bool, str, Path]]] = {}
    for path in [*root.glob("*"), *root.glob("*/*")]:
        match = _TABLE.fullmatch(path.name)
        if match and path.is_file():
            found.setdefault(match.group(1), []).append((match.group(3).lower() == "csv", match.group(2).lower(), path))
    if not found:
        raise DataError(
            f"{root} holds no table such as Annotation_Base11.xls or Annotation_Base11.csv: unpack the set again and "
            "point to the folder that holds them."
        )
    return {base: max(choices)[2] for base, choices in sorted(found.items())}


def _without_duplicates(found: list[Photograph]) -> tuple[list[Photograph], list[LeftOut]]:
    grades = {Path(photograph.file).stem: photograph.label for photograph in found}
    twins = _DUPLICATES | {other: name for name, other in _DUPLICATES.items()}
    kept, left_out = [], []
    for photograph in found:
        stem = Path(photograph.file).stem
        twin = twins.get(stem)
        if twin in grades and grades[twin] != photograph.label:
            left_out.append(LeftOut(photograph.file, "the set's errata: one picture, two names, two grades"))
        elif stem in _DUPLICATES and twin in grades:
            left_out.append(LeftOut(photograph.file, "the set's errata: one picture, two names"))
        else:
            kept.append(photograph)
    return kept, left_out


SET = PublicSet(
    name="messidor1",
    survey_of=survey,
    title="Messidor",
    layout=(
        "12 tables `Annotation_BaseXY.xls` or `.csv` (Image name, Retinopathy grade), images in `BaseXY/`; if "
        "there, Messidor-2's `messidor-2.csv`"
    ),
    grades="normal_3stages (grades 0 to 3)",
    patients="pairs of `messidor-2.csv`, else each image is its own",
    splits=ALL_BY_SEED,
    rules=(
        "the owner's errata: four grades corrected, one of each of 13 duplicates of Base33 left out, both where "
        "their grades differ"
    ),
)
