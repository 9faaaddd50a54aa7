"""Messidor-2 with the grades that Krause et al. adjudicated, as the two archives unpack into one folder."""

from __future__ import annotations

from pathlib import Path

from fedretina.data.readers.image_folder import ImageFolder, unlisted
from fedretina.data.readers.messidor_pairs import read_pairs, unpaired
from fedretina.data.readers.survey import ALL_BY_SEED, ImportSettings, LeftOut, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import oedema, read_table, require_grade

_DME = "adjudicated_dme"
_FOLDERS = ("IMAGES", "images", "messidor-2/IMAGES", "preprocess", "")


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read the images with adjudicated grades; raw labels are ICDR grades 0 to 4.

    The set itself has no grades. Those of Krause et al. (Ophthalmology 2018) come as messidor_data.csv, with the
    columns image_id, adjudicated_dr_grade, adjudicated_dme and adjudicated_gradable; a spread copy calls the first two
    id_code and diagnosis. Images without a grade or with gradable 0 are left out: the full list has four, too few for
    a grade of their own. messidor-2.csv pairs the eyes of an examination, which we take as the patient.

    Raises:
        DataError: A list is missing or damaged.
    """
    table = root / "messidor_data.csv"
    images = ImageFolder(root, _FOLDERS)
    pairs = read_pairs(root)
    found, left_out = [], []
    for row in read_table(
        table, ["image_id|id_code"], optional=["adjudicated_dr_grade|diagnosis", "adjudicated_gradable", _DME]
    ):
        name = row.cells["image_id"]
        file = images.find(name)
        if not row.cells["adjudicated_dr_grade"] or row.cells["adjudicated_gradable"].removesuffix(".0") == "0":
            left_out.append(LeftOut(name, "the adjudicators could not grade it"))
            continue
        grade = require_grade(table, row, "adjudicated_dr_grade", "01234")
        beside = oedema(table, row, _DME, "1")
        found.append(Photograph(file, grade, pairs.get(Path(name).stem.lower(), Path(name).stem), beside=beside))
    alone = sum(Path(photograph.file).stem.lower() not in pairs for photograph in found)
    return Survey(tuple(found), "icdr5", tuple(left_out), (*unpaired(len(found), alone), *unlisted(images)))


SET = PublicSet(
    name="messidor2",
    survey_of=survey,
    title="Messidor-2 with the adjudicated grades",
    layout=(
        "`messidor_data.csv` (image_id, adjudicated_dr_grade, adjudicated_gradable), `messidor-2.csv` "
        "(left;right), `IMAGES/`"
    ),
    grades="icdr5",
    patients="pairs of `messidor-2.csv`, else each image is its own",
    splits=ALL_BY_SEED,
    rules="images without an adjudicated grade are left out",
)
