"""ODIR-5K: both eyes of 5,000 patients with the doctors' diagnostic keywords."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from fedretina.data.readers.image_folder import ImageFolder
from fedretina.data.readers.survey import ImportSettings, LeftOut, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import Row, read_table, sex_and_age
from fedretina.errors import DataError
from fedretina.settings.columns import Column

_GRADES = {
    "mild nonproliferative retinopathy": "1",
    "moderate nonproliferative retinopathy": "2",
    "severe nonproliferative retinopathy": "3",
    "proliferative diabetic retinopathy": "4",
    "severe proliferative diabetic retinopathy": "4",
}
_NORMAL = "normal fundus"
# What the set's own description calls background: it says something of the picture, not of the eye.
_PICTURE = {"lens dust", "image offset", "low image quality", "optic disk photographically invisible"}
_NO_FUNDUS = {"anterior segment image", "no fundus image"}
_SEPARATOR = re.compile(r"[,;，；、?]")  # some copies of the list were folded to ASCII, with "?" for the wide comma
_COLUMNS = ("ID", "Left-Fundus", "Right-Fundus", "Left-Diagnostic Keywords", "Right-Diagnostic Keywords")
_AGE, _SEX = "Patient Age", "Patient Sex"
_SIDES = ("Left", "Right")
_OIA = {"Training Set": "train", "Off-site Test Set": "val", "On-site Test Set": "test"}
_IMAGES = (
    "preprocessed_images",
    "Training Images",
    "ODIR-5K/Training Images",
    "ODIR-5K/ODIR-5K/Training Images",
    "ODIR-5K_Training_Dataset",
    "ODIR-5K_Training_Images",
)


class _Table(NamedTuple):
    path: Path
    images: ImageFolder
    part: str | None


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read the eyes whose keywords give a grade; raw labels are ICDR grades 0 to 4.

    The set's own labels (N, D, G, ...) are a patient's and know no stages, so the grade is read from the keywords
    of the eye. The rules are ours:

    - mild, moderate, severe nonproliferative retinopathy are 1, 2, 3, in both spellings; proliferative diabetic
      retinopathy, severe or not, is 4; of several the highest counts, whatever else the eye has;
    - "normal fundus", alone or with words on the picture only (lens dust, low image quality), is 0;
    - left out: a retinopathy that is suspected or suspicious, or has no stage; an eye with other findings alone,
      because nobody said that it has no retinopathy; what is no picture of a fundus.

    Three layouts are known: Kaggle's copy (full_df.csv, one row per image; its author has removed some images); the
    challenge's training part (one row per patient); OIA-ODIR, which has published all three parts, where we take
    the off-site test part as val and the on-site one as test.

    Raises:
        DataError: No list is there, or it is damaged.
    """
    found: list[Photograph] = []
    left_out: list[LeftOut] = []
    beside = 0
    for table in _tables(root):
        rows = read_table(table.path, _COLUMNS[:3], optional=[*_COLUMNS[3:], "filename", _AGE, _SEX])
        for row in rows:
            for side in _sides(table.path, row):
                file = table.images.find(row.cells[f"{side}-Fundus"])
                words = keywords(row.cells[f"{side}-Diagnostic Keywords"])
                grade, reason = grade_of(words)
                if grade is None:
                    left_out.append(LeftOut(file, reason))
                else:
                    beside += grade != "0" and any(word not in _GRADES and word not in _PICTURE for word in words)
                    person = sex_and_age(row.cells[_SEX], row.cells[_AGE])
                    told: dict[Column, str] = {"eye": side.lower(), **person}
                    found.append(Photograph(file, grade, row.cells["ID"], table.part, told))
    warnings = ["grades are read from the doctor's keywords and are noisier than those of a graded set."]
    if beside:
        warnings.append(f"{beside} of the graded eyes have other findings beside retinopathy.")
    return Survey(tuple(found), "icdr5", tuple(left_out), tuple(warnings))


def keywords(text: str) -> tuple[str, ...]:
    """The keywords of an eye, in lower case and one spelling."""
    words = (" ".join(word.lower().split()) for word in _SEPARATOR.split(text))
    return tuple(re.sub(r"non[ -]proliferative", "nonproliferative", word) for word in words if word)


def grade_of(words: tuple[str, ...]) -> tuple[str | None, str]:
    """The grade of an eye with these keywords, or None and why not; see `survey` for the rules."""
    retinopathy = [word for word in words if "diabetic retinopathy" in word or "proliferative retinopathy" in word]
    grades = [_GRADES[word] for word in words if word in _GRADES]
    findings = {word for word in words if word not in _PICTURE}
    grade = None
    if findings & _NO_FUNDUS:
        reason = "it is no picture of a fundus"
    elif any(word.startswith(("suspected", "suspicious")) for word in retinopathy):
        reason = "diabetic retinopathy is only suspected"
    elif grades:
        grade, reason = max(grades), ""
    elif retinopathy:
        reason = "diabetic retinopathy without a stage"
    elif findings == {_NORMAL}:
        grade, reason = "0", ""
    elif findings:
        reason = "other findings, and retinopathy is not mentioned"
    else:
        reason = "its keywords tell nothing of the eye"
    return grade, reason


def _sides(path: Path, row: Row) -> list[str]:
    """Both eyes; where a row is an image, the eye that it names."""
    file = row.cells["filename"]
    if not file:
        return list(_SIDES)
    sides = [side for side in _SIDES if row.cells[f"{side}-Fundus"] == file]
    if len(sides) != 1:
        raise DataError(f"{path}, row {row.number}: filename is {file!r}, which is none of the patient's two images.")
    return sides


def _tables(root: Path) -> list[_Table]:
    if (root / "full_df.csv").is_file():
        return [_Table(root / "full_df.csv", ImageFolder(root, _IMAGES), None)]
    parts = []
    for name, part in _OIA.items():
        folder = next((folder for folder in (name, name.replace(" ", "_")) if (root / folder).is_dir()), None)
        if folder is not None:
            table = _one_table(root / folder / "Annotation", "*annotation*")
            parts.append(_Table(table, ImageFolder(root, [f"{folder}/Images"]), part))
    if parts:
        return parts
    return [_Table(_one_table(root, "*ODIR*Annotations*"), ImageFolder(root, _IMAGES), None)]


def _one_table(folder: Path, pattern: str) -> Path:
    """The table of a folder, CSV before Excel."""
    found = {path.suffix.lower(): path for path in sorted(folder.glob(pattern))}
    for suffix in (".csv", ".xlsx", ".xls"):
        if suffix in found:
            return found[suffix]
    raise DataError(
        f"{folder} holds neither full_df.csv nor a table such as ODIR-5K_Training_Annotations(Updated)_V2.xlsx, nor "
        "the three folders of OIA-ODIR: unpack the set again and point to its folder."
    )


SET = PublicSet(
    name="odir5k",
    survey_of=survey,
    title="ODIR-5K",
    layout=(
        "`full_df.csv` and `preprocessed_images/`, or `ODIR-5K_Training_Annotations(Updated)_V2.xlsx` (or "
        "`.csv`) and `Training Images/`, or OIA-ODIR's three folders with `Annotation/` and `Images/`"
    ),
    grades="icdr5; `--scheme normal_3stages` merges 3 and 4",
    patients="ID: both eyes",
    splits="OIA-ODIR only: off-site is val, on-site is test",
    rules="the grade is read from the doctor's keywords of that eye; eyes without one are left out",
)
