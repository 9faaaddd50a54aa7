"""Kermany et al. 2018, OCT2017 and later releases, as they unpack: a folder per part, and in it a folder per class."""

from __future__ import annotations

import re
from pathlib import Path

from fedretina.data.readers.image_folder import image_names
from fedretina.data.readers.survey import ImportSettings, Photograph, PublicSet, Survey
from fedretina.errors import DataError

_FOLDERS = ("", "OCT2017", "CellData/OCT", "OCT")
_CLASSES = ("NORMAL", "DRUSEN", "DME", "CNV")
_PARTS = ("train", "val", "test")
_NAME = re.compile(r"(?:CNV|DME|DRUSEN|NORMAL)-(?P<patient>\d+)-\d+\.\w+", re.IGNORECASE)


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read all parts; raw labels are the names of the folders.

    A name such as CNV-1016042-1.jpeg tells the patient, whose scans are near copies of each other. A number that occurs
    in two classes is taken for one patient. Patients of the public test part are in the public train part too, so by
    default all scans are split anew; with `official` the test part stands, and train gives up those patients' scans.

    Args:
        root: The folder that holds train and test, or one above it as the archives unpack.
        settings: None of them counts here.
        out: Not used.

    Raises:
        DataError: There is no such folder, or a file is called otherwise.
    """
    folder = next((folder for folder in _FOLDERS if (root / folder / "train").is_dir()), None)
    if folder is None:
        raise DataError(f"{root} holds no folder train with the folders {list(_CLASSES)}: unpack the set again.")
    prefix = f"{folder}/" if folder else ""
    found = []
    homes: dict[str, set[str]] = {}
    for part in _PARTS:
        for label in _CLASSES:
            place = f"{prefix}{part}/{label}"
            for name in sorted(image_names(root / place)):
                match = _NAME.fullmatch(name)
                if match is None:
                    raise DataError(
                        f"{root / place / name} is not called CLASS-PATIENT-NUMBER, as the set's scans are, so its "
                        "patient is not known: unpack the set again, or import it as class_folders."
                    )
                patient = match.group("patient")
                homes.setdefault(patient, set()).add(part)
                found.append(Photograph(f"{place}/{name}", label, patient, part))
    if not found:
        raise DataError(f"{root / prefix} holds no image in the folders of its classes: unpack the set again.")
    shared = sum(len(parts) > 1 for parts in homes.values())
    told = (
        f"{shared} of {len(homes)} patients have scans in more than one of the published parts train, val and test: "
        "figures on the published split are too good."
    )
    return Survey(tuple(found), "oct4", warnings=(told,) if shared else ())


SET = PublicSet(
    name="kermany",
    survey_of=survey,
    title="Kermany et al. 2018, OCT2017 and later releases",
    layout="`OCT2017/train/CLASS/CLASS-PATIENT-NUMBER.jpeg`, `val/`, `test/`; also `CellData/OCT/`",
    grades="oct4; `--scheme oct3` merges DRUSEN and CNV",
    patients="the number in the name",
    splits="with `--official` only: train and test share patients, and train then gives theirs up",
    rules="a number that occurs in two classes is one patient",
    official=False,
    modality="oct",
)
