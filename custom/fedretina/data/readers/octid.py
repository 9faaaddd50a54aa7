"""OCTID (Gholami et al. 2020): some 570 scans of a Cirrus, each called by its class and a number."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedretina.data.readers.image_folder import is_image, no_patients
from fedretina.data.readers.survey import ALL_BY_SEED, NO_PATIENTS, ImportSettings, Photograph, PublicSet, Survey
from fedretina.errors import DataError

_NAME = re.compile(r"(NORMAL|AMRD|ARMD|AMD|CSR|DR|MH)[\s_-]*\(?\d+\)?", re.IGNORECASE)


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read all scans below the folder; the raw label is the word before the number in a file's name.

    The set comes as an archive per class, which people unpack to folders of their own choice; so the files' names count
    and not their folders'. Other images, such as its delineations of layers, are passed over with a warning. The
    set names no patients: each scan is its own.

    Args:
        root: The folder below which the archives were unpacked.
        settings: None of them counts here.
        out: Passed over when it lies below `root`.

    Raises:
        DataError: No file is called as the set's scans are.
    """
    skip = out.resolve()
    found, others = [], 0
    for place, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith(".") and (Path(place) / name).resolve() != skip)
        for name in sorted(names):
            if not is_image(name):
                continue
            match = _NAME.fullmatch(Path(name).stem)
            if match is None:
                others += 1
                continue
            file = (Path(place) / name).relative_to(root).as_posix()
            found.append(Photograph(file, match.group(1).upper(), file))
    if not found:
        raise DataError(f"{root} holds no image called NORMAL1, AMRD1, CSR1, DR1 or MH1: unpack the set again.")
    words = f"{others} of the images are not called by a class and a number and stay out."
    return Survey(tuple(found), "octid", warnings=(no_patients(), *([words] if others else [])))


SET = PublicSet(
    name="octid",
    survey_of=survey,
    title="OCTID",
    layout="`NORMAL1.jpeg`, `AMRD1.jpeg`, `CSR1.jpeg`, `DR1.jpeg`, `MH1.jpeg` and so on, in folders of any name",
    grades="octid",
    patients=NO_PATIENTS,
    splits=ALL_BY_SEED,
    rules="DR is retinopathy and stands for no class of Kermany's; other images are passed over",
    modality="oct",
)
