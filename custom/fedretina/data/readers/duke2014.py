"""Duke's 45 volumes (Srinivasan et al. 2014) as the archive unpacks: a folder per volume, called by its class."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedretina.data.readers.image_folder import is_image
from fedretina.data.readers.survey import ALL_BY_SEED, ImportSettings, Photograph, PublicSet, Survey
from fedretina.errors import DataError

_FOLDERS = ("", "Publication_Dataset")
_VOLUME = re.compile(r"(AMD|DME|NORMAL)\s*\d+", re.IGNORECASE)
_SCANS = ("TIFFs/8bitTIFFs", "8bitTIFFs", "TIFFs", "")


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read all volumes; raw labels are AMD (the dry form), DME and NORMAL, each scan with its volume's.

    There is one volume per person, so the folder is the patient. The set has no class for drusen or for neovascular
    membranes apart from AMD.

    Args:
        root: The folder that holds AMD1 to NORMAL15, or one above it.
        settings: None of them counts here.
        out: Not used.

    Raises:
        DataError: There is no such folder, or one without a scan.
    """
    for folder in _FOLDERS:
        volumes = _volumes(root / folder)
        if volumes:
            break
    else:
        raise DataError(f"{root} holds no folders AMD1, DME1, NORMAL1 and so on: unpack the set again.")
    prefix = f"{folder}/" if folder else ""
    found = []
    for volume, label in volumes:
        place = next(
            (f"{volume}/{below}".rstrip("/") for below in _SCANS if _scans(root / folder / volume / below)), None
        )
        if place is None:
            raise DataError(f"{root / folder / volume} holds no scan: unpack the set again.")
        names = _scans(root / folder / place)
        found += [Photograph(f"{prefix}{place}/{name}", label, volume) for name in names]
    return Survey(tuple(found), "duke3")


def _volumes(root: Path) -> list[tuple[str, str]]:
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return []
    matches = [(name, _VOLUME.fullmatch(name)) for name in names]
    return [(name, match.group(1).upper()) for name, match in matches if match]


def _scans(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if is_image(entry.name))
    except OSError:
        return []


SET = PublicSet(
    name="duke2014",
    survey_of=survey,
    title="Duke, 45 OCT volumes (Srinivasan et al. 2014)",
    layout="`AMD1/TIFFs/8bitTIFFs/*.tif` to `NORMAL15/...`, in `Publication_Dataset/` or without",
    grades="duke3 (AMD is the dry form)",
    patients="the folder: a volume each",
    splits=ALL_BY_SEED,
    rules="each scan has its volume's label",
    modality="oct",
)
