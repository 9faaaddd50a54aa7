"""Fed-ISIC2019: the pictures of the ISIC 2019 challenge, with the centres and the fold of FLamby's split file."""

from __future__ import annotations

from pathlib import Path

from fedretina.data.readers.image_folder import ImageFolder
from fedretina.data.readers.survey import ImportSettings, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import read_table, require_grade, sex_and_age
from fedretina.errors import DataError, SettingsError
from fedretina.settings.columns import Column

SPLIT_FILE = "train_test_split"
CENTRES = ("BCN", "HAM vidir molemax", "HAM vidir modern", "HAM rosendahl", "MSK", "HAM vienna dias")
_DIAGNOSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
_IMAGES = ("ISIC_2019_Training_Input", "ISIC_2019_Training_Input_preprocessed", "images")
# Where lesions are named, and age and sex of whose they are: the challenge's own table, or that of HAM10000, which
# FLamby brings along.
_LESIONS = (
    ("ISIC_2019_Training_Metadata.csv", "image", "age_approx"),
    ("HAM10000_metadata", "image_id", "age"),
    ("HAM10000_metadata.csv", "image_id", "age"),
)


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read the split file; raw labels are the diagnoses, MEL to SCC.

    The patient of a picture is its lesion, since patients are not published; one without a lesion stands alone. The
    public fold has lesions on both sides, so by default all pictures are split anew by lesion. With `official` the
    public test part stands and train gives up the pictures of its lesions; with `as_published` it keeps them, and a
    lesion counts as another one on the other side.

    Args:
        root: The folder that holds the split file, the pictures' folder and, where there is one, a table of lesions.
        settings: `client`, a centre as FLamby numbers them, 0 to 5; `as_published`.
        out: Not used.

    Raises:
        DataError: The split file is missing, damaged, or has no picture of the centre.
        SettingsError: There is no such centre.
    """
    centres = [str(number) for number in range(len(CENTRES))]
    if settings.client is not None and settings.client not in centres:
        raise SettingsError(
            f"client is {settings.client!r}: write the number of a centre, 0 to 5, which are {', '.join(CENTRES)}."
        )
    table = next((root / name for name in (SPLIT_FILE, f"{SPLIT_FILE}.csv") if (root / name).is_file()), None)
    if table is None:
        raise DataError(
            f"{root} holds no {SPLIT_FILE}, FLamby's list of centres and folds: unpack it beside the images."
        )
    images = ImageFolder(root, _IMAGES)
    lesions = _lesions(root)
    found = []
    sides: dict[str, set[str]] = {}
    for row in read_table(table, ["image", "target", "center", "fold"]):
        if require_grade(table, row, "center", centres) != (settings.client or row.cells["center"].removesuffix(".0")):
            continue
        name, part = row.cells["image"], row.cells["fold"]
        if part not in ("train", "test"):
            raise DataError(f"{table}, row {row.number}: the fold is {part!r}: it must be train or test.")
        label = _DIAGNOSES[int(require_grade(table, row, "target", "01234567"))]
        lesion, person = lesions.get(name, ("", {}))
        lesion = lesion or name
        sides.setdefault(lesion, set()).add(part)
        patient = f"{lesion} {part}" if settings.as_published else lesion
        found.append(Photograph(images.find(name, ".jpg"), label, patient, part, person))
    if not found:
        raise DataError(f"{table} lists no image of centre {settings.client}: name another, or unpack the set again.")
    return Survey(tuple(found), "isic8", warnings=_warnings(sides, bool(lesions)))


def _lesions(root: Path) -> dict[str, tuple[str, dict[Column, str]]]:
    """Lesion of each picture, and sex and age of the person; of a lesion with several sexes none is told."""
    for name, image, age in _LESIONS:
        if not (root / name).is_file():
            continue
        rows = read_table(root / name, [image], optional=["lesion_id", age, "sex"])
        told = {
            row.cells[image]: (row.cells["lesion_id"], sex_and_age(row.cells["sex"], row.cells[age])) for row in rows
        }
        sexes: dict[str, set[str]] = {}
        for lesion, person in told.values():
            sexes.setdefault(lesion, set()).add(person["sex"])
        for lesion, person in told.values():
            if lesion and len(sexes[lesion] - {""}) > 1:
                person["sex"] = ""
        return told
    return {}


def _warnings(sides: dict[str, set[str]], named: bool) -> tuple[str, ...]:
    if not named:
        return (
            "no table names the lesions (ISIC_2019_Training_Metadata.csv or HAM10000_metadata): each image is its own, "
            "so two pictures of a lesion may fall into different splits, and figures may be too good.",
        )
    shared = sum(len(parts) > 1 for parts in sides.values())
    told = (
        f"{shared} of {len(sides)} lesions have pictures on both sides of the public fold: figures on it as published "
        "are too good."
    )
    return (told,) if shared else ()


SET = PublicSet(
    name="isic2019",
    survey_of=survey,
    title="Fed-ISIC2019 (ISIC 2019 in FLamby's six centres)",
    layout=(
        "`train_test_split` (image, target, center, fold), `ISIC_2019_Training_Input/NAME.jpg`; for the lesions "
        "`ISIC_2019_Training_Metadata.csv` or `HAM10000_metadata`"
    ),
    grades="isic8",
    patients="lesion_id: the lesion; images without one are their own",
    splits=(
        "with `--official` only: the public fold has lesions on both sides, and train then gives them up, unless "
        "`--as-published`"
    ),
    rules="`--client 0` to `5` is one centre; val comes from train",
    options=("client", "as_published"),
    official=False,
    modality="dermoscopy",
)
