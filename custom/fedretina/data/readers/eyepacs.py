"""EyePACS, as the Kaggle competition Diabetic Retinopathy Detection (2015) unpacks."""

from __future__ import annotations

import re
from pathlib import Path

from fedretina.data.readers.image_folder import ImageFolder, unlisted
from fedretina.data.readers.survey import ImportSettings, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import Row, read_table, require_grade
from fedretina.errors import DataError
from fedretina.settings.columns import Column

_NAME = re.compile(r"(\d+)_(left|right)", re.IGNORECASE)
_EYEQ = ("Label_EyeQ_train.csv", "Label_EyeQ_test.csv")
_REJECT = "2"
_WORDS = {"0": "good", "1": "usable", _REJECT: "poor"}
_UNGRADABLE = "5"


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read the labelled images; raw labels are ICDR grades 0 to 4, and 5 for images that EyeQ rejects.

    A name is ID_left or ID_right, and the ID is the patient, so both eyes share a split. The labels of the official
    test part were published after the competition as retinopathy_solution.csv (image, level, Usage): with that file
    and the folder test, the official test part stands; its use in the leader board is not told apart.

    EyeQ (Fu et al., MICCAI 2019) grades the quality of part of the images: 0 good, 1 usable, 2 reject. With its
    tables in the set's folder, rejected images are ungradable whatever EyePACS's reader said; that merging is ours.

    Raises:
        DataError: A list is missing or damaged, or a name is of another form.
    """
    images = ImageFolder(root, ["train"])
    folders = [images]
    found = _part(root / "trainLabels.csv", images, None)
    warnings: list[str] = []
    solution, test = root / "retinopathy_solution.csv", ImageFolder(root, ["test"])
    if solution.is_file() and (root / "test").is_dir():
        found = [photograph._replace(part="train") for photograph in found] + _part(solution, test, "test")
        folders.append(test)
    elif solution.is_file() or (root / "test").is_dir():
        warnings.append(
            "the official test part needs both retinopathy_solution.csv and the folder test: it is not read."
        )

    quality = _eyeq(root)
    if quality:
        names = [Path(photograph.file).stem.lower() for photograph in found]
        found = [
            photograph._replace(
                label=_UNGRADABLE if quality.get(name) == _REJECT else photograph.label,
                beside={**photograph.beside, "quality": _WORDS.get(quality.get(name, ""), "")},
            )
            for name, photograph in zip(names, found, strict=True)
        ]
        unknown = sum(name not in quality for name in names)
        if unknown:
            warnings.append(f"EyeQ has not graded the quality of {unknown} images: they keep their grade.")
    warnings.extend(unlisted(*folders))
    return Survey(tuple(found), "icdr5_ungradable" if quality else "icdr5", warnings=tuple(warnings))


def _part(table: Path, images: ImageFolder, part: str | None) -> list[Photograph]:
    found = []
    for row in read_table(table, ["image", "level"]):
        name = row.cells["image"]
        match = _NAME.fullmatch(name)
        if match is None:
            raise DataError(f"{table}, row {row.number}: image is {name!r}, expected a name such as 10_left.")
        grade = require_grade(table, row, "level", "01234")
        beside: dict[Column, str] = {"eye": match.group(2).lower()}
        found.append(Photograph(images.find(name, ".jpeg"), grade, match.group(1), part, beside))
    return found


def _eyeq(root: Path) -> dict[str, str]:
    """Quality by the name of an image without its ending; empty where there are no tables."""
    found = {}
    for table in (root / name for name in _EYEQ):
        if table.is_file():
            for row in read_table(table, ["image", "quality"]):
                found[Path(row.cells["image"]).stem.lower()] = _quality(table, row)
    return found


def _quality(table: Path, row: Row) -> str:
    return require_grade(table, row, "quality", "012")


SET = PublicSet(
    name="eyepacs",
    survey_of=survey,
    title="EyePACS (Kaggle Diabetic Retinopathy Detection)",
    layout=(
        "`trainLabels.csv` (image, level), `train/ID_left.jpeg`; if there, `retinopathy_solution.csv` and "
        "`test/`, and EyeQ's `Label_EyeQ_train.csv` and `Label_EyeQ_test.csv`"
    ),
    grades="icdr5; icdr5_ungradable with EyeQ",
    patients="the ID: both eyes",
    splits="test, with `retinopathy_solution.csv`",
    rules="with EyeQ, quality 2 (reject) is ungradable whatever the grade",
)
