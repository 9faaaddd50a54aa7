"""APTOS 2019 Blindness Detection, as the Kaggle archive unpacks: train.csv and train_images/."""

from __future__ import annotations

from pathlib import Path

from fedretina.data.readers.image_folder import ImageFolder, no_patients, unlisted
from fedretina.data.readers.survey import NO_PATIENTS, ImportSettings, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import read_table, require_grade


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read the labelled part; raw labels are ICDR grades 0 to 4.

    The set names no patients: each image is its own patient, so two eyes of a patient may fall into
    different splits, and figures on this set are too good by an unknown amount. The official test part has
    no public labels, so test is cut from the labelled part.

    Raises:
        DataError: train.csv is missing or damaged.
    """
    table = root / "train.csv"
    images = ImageFolder(root, ["train_images"])
    found = []
    for row in read_table(table, ["id_code", "diagnosis"]):
        name = row.cells["id_code"]
        grade = require_grade(table, row, "diagnosis", "01234")
        found.append(Photograph(images.find(name, ".png"), grade, name))
    return Survey(tuple(found), "icdr5", warnings=(no_patients(), *unlisted(images)))


SET = PublicSet(
    name="aptos2019",
    survey_of=survey,
    title="APTOS 2019 Blindness Detection",
    layout="`train.csv` (id_code, diagnosis), `train_images/ID.png`",
    grades="icdr5",
    patients=NO_PATIENTS,
    splits="none: the official test part has no public labels",
    rules="none",
)
