"""Whose eye is it: joining the photographs of a patient, by their names or by a list."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fedretina.data.eyes import EYES, NAMED, Eye, named_eye
from fedretina.data.manifest import csv_rows
from fedretina.errors import DataError, SettingsError
from fedretina.plurals import counted
from fedretina.prediction.photographs import DicomPicture

# Words that name the same pair of eyes; a pair must use one of them for both.
_STYLES = {"left": "words", "right": "words", "os": "latin", "od": "latin", "l": "letters", "r": "letters"}


class Owner(NamedTuple):
    """Whose photograph it is.

    Attributes:
        patient: Name of the patient; the file's own name where none is known.
        eye: "" where it is not known.
    """

    patient: str
    eye: Eye


class Joining(NamedTuple):
    """Owners of a list of files, and how they were found.

    Attributes:
        owners: One a file, in its order.
        how: Sentences for the person who reads the result.
    """

    owners: tuple[Owner, ...]
    how: tuple[str, ...]


def by_name(files: Sequence[str]) -> Joining:
    """Join the two eyes of a patient where the names leave no doubt.

    Two files make a pair when they lie in the same folder and are named alike but for the last word, with the same
    mark before it: 10_left and 10_right, 10_OD and 10_OS, 10-L and 10-R, in either case. A third file of that name, the
    same eye twice, or left beside OD, and none of them is joined: an eye ascribed to the wrong patient does more harm
    than two lines on a list. A lone left, right, OD or OS is a patient with one eye; a lone L or R may mean anything.
    All others are each a patient of their own, under the name of the file.
    """
    groups: defaultdict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for file in files:
        path = PurePosixPath(file)
        named = NAMED.fullmatch(path.stem)
        if named is not None:
            word = named["word"].lower()
            groups[str(path.parent / named["base"])].append((file, word, named["mark"] + _STYLES[word]))
    owners: dict[str, Owner] = {}
    pairs, unclear, taken = 0, 0, set(files)
    example = ""
    for patient, members in groups.items():
        eyes = sorted(EYES[word] for _, word, _ in members)
        pair = eyes == ["left", "right"] and len({style for _, _, style in members}) == 1
        lone = len(members) == 1 and not members[0][2].endswith("letters")
        if patient not in taken and (pair or lone):
            owners |= {file: Owner(patient, EYES[word]) for file, word, _ in members}
            pairs += pair
            example = example or (
                " and ".join(sorted(PurePosixPath(file).name for file, _, _ in members)) if pair else ""
            )
        elif len(members) > 1:
            unclear += len(members)
    alone = len(files) - len(owners)
    how = [
        f"Two photographs were taken for the two eyes of a patient where their names say so, such as {example}."
        if pairs
        else "No two photographs are named as the two eyes of a patient.",
        f"{counted(alone, 'photograph was', 'photographs were')} not joined and counted as a patient each: two eyes of "
        "one person may be among them."
        if alone
        else "",
        f"{unclear} of these have names of eyes that do not make one pair; they were not joined." if unclear else "",
    ]
    found = tuple(owners.get(file, Owner(file, "")) for file in files)
    return Joining(found, tuple(sentence for sentence in how if sentence))


def by_header(files: Sequence[str], dicom: Mapping[str, DicomPicture]) -> Joining:
    """Join photographs of DICOM files by the patient and the eye that the files name, all others by their names.

    A DICOM file that names no patient is one of its own. Other files whose names tell the name of a patient of a DICOM
    file are not joined with it: nothing says that the two are one person.

    Args:
        files: Names relative to the folder, with '/'.
        dicom: Those of them that stand in DICOM files, by their names.
    """
    others = [file for file in files if file not in dicom]
    named = by_name(others)
    owners = {file: _of_header(one) for file, one in dicom.items()}
    patients = {owner.patient for owner in owners.values()}
    for file, owner in zip(others, named.owners, strict=True):
        owners[file] = Owner(file, owner.eye) if owner.patient in patients else owner
    alone = len({one.file for one in dicom.values() if one.header is None or not one.header.patient})
    how = [
        f"{counted(len(dicom), 'photograph was', 'photographs were')} joined into patients by the Patient ID of their "
        "DICOM files."
        if dicom
        else "",
        f"{counted(alone, 'DICOM file names', 'DICOM files name')} no patient or cannot be read, and counted as a "
        "patient each."
        if alone
        else "",
        *(named.how if others else ()),
    ]
    return Joining(tuple(owners[file] for file in files), tuple(sentence for sentence in how if sentence))


def _of_header(picture: DicomPicture) -> Owner:
    header = picture.header
    if header is None:
        return Owner(picture.file, "")
    eye: Eye = header.laterality if header.laterality in ("left", "right") else ""
    return Owner(header.patient or picture.file, eye)


def by_pattern(files: Sequence[str], pattern: str) -> Joining:
    """Join by a regular expression, searched for in the name with its folders.

    Args:
        files: Names relative to the folder, with '/'.
        pattern: With a group named patient, and one named eye where the names tell it.

    Raises:
        SettingsError: The pattern is no regular expression, has no group named patient, or fits no file.
        DataError: The group eye is no name of an eye; names the file.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise SettingsError(f"the pattern for patients is no regular expression ({error}).") from error
    if "patient" not in compiled.groupindex:
        raise SettingsError("the pattern for patients has no group named patient: write it as (?P<patient>...).")
    owners, alone = [], 0
    for file in files:
        match = compiled.search(file)
        patient = match["patient"] if match else None
        alone += not patient
        word = match["eye"] if match and patient and "eye" in compiled.groupindex else None
        owners.append(Owner(patient or file, _eye(word or "", f"the pattern for patients finds in {file!r}")))
    if files and alone == len(files):
        raise SettingsError("the pattern for patients fits none of the files: try it on one of their names.")
    how = [
        f"Photographs were joined into patients by the pattern {pattern}.",
        _unlisted(alone, "the pattern does not fit"),
    ]
    return Joining(tuple(owners), tuple(sentence for sentence in how if sentence))


def by_list(files: Sequence[str], path: Path) -> Joining:
    """Join by a list with the columns file, patient and, where it is known, eye; CSV as `csv_rows` reads it.

    Args:
        files: Names relative to the folder, with '/'.
        path: The list; `file` is written as in `files`, other columns are ignored. Where it names no eye at all, the
            files' names do, if they end with one.

    Raises:
        DataError: The list cannot be read, lacks a column, names a file twice or an eye that is none, or fits no file.
    """
    known: dict[str, Owner] = {}
    try:
        rows = csv_rows(path, ("file", "patient"), ("eye",))
    except OSError as error:
        raise DataError(
            f"the list of patients {path} cannot be read ({error.strerror}): mend its path or its rights."
        ) from error
    for number, row in rows:
        file, patient, word = row["file"], row["patient"], row["eye"]
        where = f"{path}, row {number}"
        if not file or not patient:
            raise DataError(f"{where}: the file or the patient is empty. Name both, or remove the row.")
        plain = str(PurePosixPath(file))
        if plain in known:
            raise DataError(f"{where}: file {file!r} stands in the list already: keep one row.")
        known[plain] = Owner(patient, _eye(word, f"{where} names"))
    alone = sum(file not in known for file in files)
    if files and alone == len(files):
        raise DataError(f"{path} names none of the photographs: write their names relative to the folder, with '/'.")
    absent = len(known.keys() - set(files))
    told = any(owner.eye for owner in known.values())
    if not told:  # then the names may tell, as they do for a site's own report
        known = {file: Owner(owner.patient, named_eye(file)) for file, owner in known.items()}
    how = [
        f"Photographs were joined into patients by the list {path.name}.",
        "Which eye each shows is read from the names of the files, since the list does not say."
        if not told and any(known[file].eye for file in files if file in known)
        else "",
        _unlisted(alone, "the list does not name"),
        counted(absent, "photograph of the list was", "photographs of the list were")
        + f" not in the folder and {'has' if absent == 1 else 'have'} no line here."
        if absent
        else "",
    ]
    owners = tuple(known.get(file, Owner(file, "")) for file in files)
    return Joining(owners, tuple(sentence for sentence in how if sentence))


def _eye(word: str, where: str) -> Eye:
    if not word:
        return ""
    if word.lower() not in EYES:
        raise DataError(f"{where} the eye {word!r}: write left or right, L or R, OS or OD, or leave it empty.")
    return EYES[word.lower()]


def _unlisted(alone: int, why: str) -> str:
    if not alone:
        return ""
    return f"{counted(alone, 'photograph')} that {why} counted as a patient each."
