"""IDRiD, part B (disease grading), as its archive unpacks."""

from __future__ import annotations

from pathlib import Path

from fedretina.data.readers.image_folder import ImageFolder, no_patients, unlisted
from fedretina.data.readers.survey import NO_PATIENTS, ImportSettings, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import oedema, read_table, require_grade

_PART = "B. Disease Grading"
_IMAGES = "1. Original Images"
_LABELS = "2. Groundtruths"
_OEDEMA = "Risk of macular edema"
_PARTS = {
    "train": ("a. Training Set", "a. IDRiD_Disease Grading_Training Labels.csv"),
    "test": ("b. Testing Set", "b. IDRiD_Disease Grading_Testing Labels.csv"),
}


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read the grading part; raw labels are ICDR grades 0 to 4.

    The official test split stands, and val is to be carved from the official train split. The set names no
    patients: each image is its own patient. The same names (IDRiD_001, ...) stand for other images in train and
    test, so the patient carries the part. A risk of macular oedema of 2, which is hard exudates within a papilla's
    diameter of the fovea, is the column macular_oedema; 1, which is exudates farther away, is none.

    Args:
        root: The folder that holds "B. Disease Grading", or that folder itself.
        settings: None of them counts here.
        out: Not used.

    Raises:
        DataError: A label file is missing or damaged.
    """
    prefix = f"{_PART}/" if (root / _PART).is_dir() else ""
    found = []
    folders = []
    for part, (folder, labels) in _PARTS.items():
        table = root / f"{prefix}{_LABELS}/{labels}"
        images = ImageFolder(root, [f"{prefix}{_IMAGES}/{folder}"])
        folders.append(images)
        for row in read_table(table, ["Image name", "Retinopathy grade"], optional=[_OEDEMA]):
            name = row.cells["Image name"]
            grade = require_grade(table, row, "Retinopathy grade", "01234")
            beside = oedema(table, row, _OEDEMA, "2")
            found.append(Photograph(images.find(name, ".jpg"), grade, f"{part}/{name}", part, beside))
    return Survey(tuple(found), "icdr5", warnings=(no_patients(), *unlisted(*folders)))


SET = PublicSet(
    name="idrid",
    survey_of=survey,
    title="IDRiD, part B",
    layout="`B. Disease Grading/1. Original Images`, `2. Groundtruths` as the archive unpacks",
    grades="icdr5",
    patients=NO_PATIENTS,
    splits="test",
    rules="the same names stand for other images in train and test",
)
