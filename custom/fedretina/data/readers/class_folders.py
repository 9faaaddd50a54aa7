"""A folder per class: the layout in which most private collections and many copies of public sets lie."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedretina.data.readers.image_folder import is_image, no_patients
from fedretina.data.readers.scheme_of import scheme_of
from fedretina.data.readers.survey import ImportSettings, LeftOut, Photograph, PublicSet, Survey
from fedretina.errors import DataError, SettingsError

PARTS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
_UNLABELLED = ("unlabelled", "unlabeled")


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read all images below each folder of a class; raw labels are the names of the folders.

    When all folders are called train, val (valid, validation) and test, they are official parts and hold the
    folders of the classes. A folder called unlabelled holds images without a label, unless the grades name it.

    Args:
        root: The folder that holds the folders.
        settings: `patient_pattern`, `unlabelled`, and `scheme`, `grades` and `ungradable` as in `scheme_of`.
        out: Not used; a folder of an import below `root` is passed over.

    Raises:
        DataError: There is no folder with images, parts and classes are mixed, the scheme is not to be seen, or a
            file does not match the pattern.
        SettingsError: The pattern cannot be used.
    """
    pattern = pattern_of(settings.patient_pattern)
    found = _photographs(root, out.resolve())
    found, left_out = _without_label(found, settings)
    scheme = scheme_of({photograph.label for photograph in found}, settings)
    if pattern is None:
        told = f"{no_patients()} Give --patient-pattern if names tell."
        return Survey(tuple(found), scheme, tuple(left_out), (told,))
    return Survey(tuple(with_patients(root, found, pattern)), scheme, tuple(left_out))


def _without_label(found: list[Photograph], settings: ImportSettings) -> tuple[list[Photograph], list[LeftOut]]:
    def has_label(photograph: Photograph) -> bool:
        return photograph.label in settings.grades or photograph.label.lower() not in _UNLABELLED

    if settings.unlabelled == "train":
        return [image if has_label(image) else image._replace(label="") for image in found], []
    without = [LeftOut(image.file, "it has no label") for image in found if not has_label(image)]
    return [image for image in found if has_label(image)], without


def _photographs(root: Path, skip: Path | None) -> list[Photograph]:
    """All images below the folders of the classes, without a folder that is to be passed over."""
    folders = _folders(root, skip)
    parts = {name: PARTS.get(name.lower()) for name in folders}
    found: list[Photograph] = []
    if folders and all(parts.values()):
        for folder, part in parts.items():
            for label in _folders(root / folder, skip):
                found += _images(root, f"{folder}/{label}", label, part, skip)
    elif any(parts.values()):
        named = sorted(name for name, part in parts.items() if part)
        raise DataError(
            f"{root} holds folders of parts {named} beside others: put the folders of the classes into train, val and "
            "test, or leave these out."
        )
    else:
        for label in folders:
            found += _images(root, label, label, None, skip)
    if not found:
        raise DataError(f"{root} holds no folder of a class with images in it: unpack the set again, or mend the path.")
    return found


def pattern_of(text: str | None) -> re.Pattern[str] | None:
    """A `patient_pattern`, compiled; None where there is none.

    Raises:
        SettingsError: It is no regular expression, or has no group named patient.
    """
    if text is None:
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise SettingsError(f"patient_pattern is no regular expression ({error}): mend it.") from error
    if "patient" not in pattern.groupindex:
        raise SettingsError("patient_pattern has no group named patient: write one, such as (?P<patient>[^_/]+)_.")
    return pattern


def _folders(root: Path, skip: Path | None) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir() and not entry.name.startswith(".") and Path(entry.path).resolve() != skip
            )
    except OSError as error:
        raise DataError(f"{root} cannot be read ({error.strerror}): unpack the set again, or mend the path.") from error


def _images(root: Path, folder: str, label: str, part: str | None, skip: Path | None) -> list[Photograph]:
    files = []
    for place, below, names in os.walk(root / folder):
        below[:] = [name for name in below if not name.startswith(".") and (Path(place) / name).resolve() != skip]
        files += [(Path(place) / name).relative_to(root).as_posix() for name in names if is_image(name)]
    return [Photograph(file, label, file, part) for file in sorted(files)]


def with_patients(root: Path, found: list[Photograph], pattern: re.Pattern[str]) -> list[Photograph]:
    """Photographs with the patients that a pattern finds in their paths.

    Raises:
        DataError: It finds none in a file's path.
    """
    matches = {photograph.file: pattern.search(photograph.file) for photograph in found}
    patients = {file: (match.group("patient") or "").strip() for file, match in matches.items() if match}
    misses = [file for file in matches if not patients.get(file)]
    if misses:
        more = f" and {len(misses) - 5} more" if len(misses) > 5 else ""
        raise DataError(
            f"patient_pattern finds no patient in {len(misses)} of {len(found)} files under {root}: "
            f"{', '.join(misses[:5])}{more}. Mend the pattern."
        )
    return [photograph._replace(patient=patients[photograph.file]) for photograph in found]


SET = PublicSet(
    name="class_folders",
    survey_of=survey,
    title="a folder per class",
    layout="`GRADE/*.jpg`, or `train/GRADE/*.jpg`, `val/GRADE/*.jpg`, `test/GRADE/*.jpg`",
    grades="from the names of the folders, or `--grades`",
    patients="`--patient-pattern`, else each image is its own",
    splits="train, val, test where the folders have them",
    rules=(
        "folders are read with all below them; one called `unlabelled` holds images without a label "
        "(`--unlabelled train`)"
    ),
    options=("grades", "ungradable", "patient_pattern", "unlabelled"),
    modality=None,
    published=False,
)
