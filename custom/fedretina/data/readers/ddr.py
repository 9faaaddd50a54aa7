"""DDR, its grading part, as the archive unpacks: DR_grading with three lists and three folders."""

from __future__ import annotations

from pathlib import Path

from fedretina.data.readers.image_folder import ImageFolder, no_patients, unlisted
from fedretina.data.readers.survey import NO_PATIENTS, ImportSettings, Photograph, PublicSet, Survey
from fedretina.errors import DataError

_FOLDERS = ("DR_grading", "DDR-dataset/DR_grading", "")
_PARTS = {"train": "train", "valid": "val", "test": "test"}


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read the grading part; raw labels are ICDR grades 0 to 4, and 5 for ungradable images.

    The official parts stand. The set has 13,673 images of 9,598 patients (Li et al., Information Sciences 2019), but
    its names do not tell which belong together: each image is its own patient.

    Args:
        root: The folder that holds DR_grading or DDR-dataset, or DR_grading itself.
        settings: None of them counts here.
        out: Not used.

    Raises:
        DataError: A list is missing, or a line of it is not a name and a grade.
    """
    folder = next((folder for folder in _FOLDERS if (root / folder / "train.txt").is_file()), _FOLDERS[0])
    found = []
    folders = []
    for name, part in _PARTS.items():
        images = ImageFolder(root, [f"{folder}/{name}" if folder else name])
        folders.append(images)
        for image, grade in _lines(root / folder / f"{name}.txt"):
            found.append(Photograph(images.find(image), grade, Path(image).stem, part))
    return Survey(tuple(found), "icdr5_ungradable", warnings=(no_patients(), *unlisted(*folders)))


def _lines(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): unpack the set again and point to its folder.") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        words = line.rsplit(maxsplit=1)
        if len(words) != 2 or words[1] not in set("012345"):
            raise DataError(f"{path}, line {number}: found {line.strip()!r}, expected a file name and a grade 0 to 5.")
        found.append((words[0].strip(), words[1]))
    if not found:
        raise DataError(f"{path} lists no image: unpack the set again.")
    return found


SET = PublicSet(
    name="ddr",
    survey_of=survey,
    title="DDR",
    layout=(
        "`DR_grading/train.txt`, `valid.txt`, `test.txt` (lines `NAME GRADE`), `DR_grading/train/NAME.jpg` and so on"
    ),
    grades="icdr5_ungradable (5 is ungradable)",
    patients=NO_PATIENTS,
    splits="train, valid, test",
    rules="none",
)
