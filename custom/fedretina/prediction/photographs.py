"""The photographs of a folder, what in it was not looked at, and copies of them for a page, small and whole."""

from __future__ import annotations

import base64
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping, Set
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.decode import decode_image
from fedretina.data.dicom_file import DicomFrame, DicomHeader, begins_as_dicom, read_header
from fedretina.errors import DataError
from fedretina.storage import write_bytes

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp"})
OF_SIGNALS = frozenset({".wav"})
_OF_DICOM = frozenset({".dcm", ".dicom"})
SIDE = 176
FULL_FOLDER = "worklist_pictures"
_SHOWN_BY_BROWSERS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
_FULL_NAME = re.compile(r"[0-9]{4,}(-seen)?\.(jpg|jpeg|png|webp|bmp)")
_QUALITY = 80
_SEEN_QUALITY = 92


class DicomPicture(NamedTuple):
    """One picture of a DICOM file in a folder.

    Attributes:
        file: Name of the file, relative to the folder.
        frame: Where its pixels stand.
        header: What the file says of it; None where that cannot be read.
    """

    file: str
    frame: DicomFrame
    header: DicomHeader | None


class PhotographFolder(NamedTuple):
    """What a folder holds.

    Attributes:
        files: Photographs relative to the folder, with '/', in the order of their names. One of several in a DICOM file
            has its number behind the file's, as in 'volume.dcm#07'.
        left_out: What was not looked at and how many: endings of other files, and linked folders.
        dicom: Those of `files` that stand in DICOM files.
        other_dicom: DICOM files that were not looked at, by their modality, and how many.
    """

    files: tuple[str, ...]
    left_out: Mapping[str, int]
    dicom: Mapping[str, DicomPicture] = MappingProxyType({})
    other_dicom: Mapping[str, int] = MappingProxyType({})

    @property
    def frames(self) -> dict[str, DicomFrame]:
        """Where the pixels of those in DICOM files stand, by their names."""
        return {name: one.frame for name, one in self.dicom.items()}


def find_photographs(folder: Path, suffixes: Set[str] = SUFFIXES, dicom: str = "") -> PhotographFolder:
    """List the photographs of a folder and the folders in it, by the ending of their names; or other files by theirs.

    A photograph that cannot be read is listed all the same, so that its patient is not forgotten. Names that begin
    with a dot belong to the system and are passed over. A link to a folder is not followed, since it may lead round in
    a ring, but it is counted.

    A DICOM file is known by its mark, since scanners name them without an ending. One that ends in .dcm and has no
    mark, or whose header cannot be read, is listed as a photograph that cannot be read.

    Args:
        folder: The folder.
        suffixes: Endings of photographs, in small letters.
        dicom: Modality of DICOM files that are photographs too, such as OP; "" looks at no DICOM file.

    Raises:
        DataError: The folder, or one in it, cannot be listed.
        SettingsError: There is a DICOM file and pydicom is not installed.
    """
    files: list[str] = []
    pictures: dict[str, DicomPicture] = {}
    left_out: Counter[str] = Counter()
    other: Counter[str] = Counter()

    def refuse(error: OSError) -> None:
        raise DataError(f"the folder {error.filename} cannot be listed ({error.strerror}): mend its path or rights.")

    for place, folders, names in os.walk(folder, onerror=refuse):
        here = Path(place)
        linked = [name for name in folders if not name.startswith(".") and (here / name).is_symlink()]
        left_out["linked folder"] += len(linked)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith("."):
                continue
            suffix, path = PurePosixPath(name).suffix.lower(), here / name
            may = _may_be_read(path)
            if suffix in suffixes and may:
                files.append(path.relative_to(folder).as_posix())
            elif dicom and may and (suffix in _OF_DICOM or begins_as_dicom(path)):
                found = _dicom_pictures(path, path.relative_to(folder).as_posix(), dicom)
                if isinstance(found, str):
                    other[found] += 1
                else:
                    pictures |= found
            elif name.upper() != "DICOMDIR":
                left_out[suffix or "no ending"] += 1
    return PhotographFolder(
        tuple(sorted([*files, *pictures])),
        {kind: left_out[kind] for kind in sorted(left_out) if left_out[kind]},
        pictures,
        dict(sorted(other.items())),
    )


def _dicom_pictures(path: Path, file: str, modality: str) -> dict[str, DicomPicture] | str:
    """The pictures of a DICOM file by their names, or what kind it is where they are not of a modality."""
    try:
        header = read_header(path)
    except DataError:
        return {file: DicomPicture(file, DicomFrame(path, 1), None)}
    if header.modality != modality or not header.frames:
        kind = header.modality if re.fullmatch("[A-Z]{2,16}", header.modality) else "no modality"
        return kind if header.modality != modality else f"{kind} without a picture"
    if header.frames == 1:
        return {file: DicomPicture(file, DicomFrame(path, 1), header)}
    wide = len(str(header.frames))
    return {
        f"{file}#{number:0{wide}d}": DicomPicture(file, DicomFrame(path, number), header)
        for number in range(1, header.frames + 1)
    }


def _may_be_read(path: Path) -> bool:
    """Whether reading ends: a pipe or a device would wait for ever. A broken link is listed and fails later."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True


def picture_of(source: Path | DicomFrame) -> NDArray[np.uint8]:
    """A photograph as it was taken, uint8 [H, W, 3] in RGB.

    Raises:
        DataError: It cannot be read.
    """
    return source.pixels() if isinstance(source, DicomFrame) else decode_image(source)


def thumbnail(source: Path | DicomFrame) -> str | None:
    """A JPEG of at most `SIDE` pixels a side as a data URI, about 7 kB; None where the photograph cannot be read.

    It shows the photograph as it was taken, in its own shape, and not what the network was fed.
    """
    import cv2

    try:
        pixels = picture_of(source)
    except DataError:
        return None
    height, width = pixels.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA) if scale < 1 else pixels
    done, coded = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return f"data:image/jpeg;base64,{base64.b64encode(coded.tobytes()).decode()}" if done else None


def full_copy(source: Path | DicomFrame, folder: Path, number: int) -> str | None:
    """Put a photograph into a folder such that a browser shows every pixel of it; None where it cannot be read.

    What browsers know is copied byte by byte; the rest, such as TIFF and DICOM, is written as PNG, which loses nothing
    of 8 bits and has nothing of a header. Its name is a number, since names of files may name patients.

    Args:
        source: The photograph.
        folder: Where the copy goes; it is there.
        number: Of the photograph in the list, 1 or more.

    Returns:
        Name of the copy.

    Raises:
        StateError: The disk is full or the folder not writable.
    """
    import cv2

    suffix = ".png"
    try:
        if isinstance(source, Path) and source.suffix.lower() in _SHOWN_BY_BROWSERS:
            suffix, whole = source.suffix.lower(), source.read_bytes()
        else:
            done, coded = cv2.imencode(suffix, cv2.cvtColor(picture_of(source), cv2.COLOR_RGB2BGR))
            if not done:
                return None
            whole = coded.tobytes()
    except (DataError, OSError):
        return None
    name = f"{number:04d}{suffix}"
    write_bytes(folder / name, whole)
    return name


def seen_copy(pixels: NDArray[np.uint8], folder: Path, number: int) -> str:
    """Put what the network gets of a photograph, uint8 [3, S, S], beside its copy; returns the name.

    Raises:
        StateError: The disk is full or the folder not writable.
    """
    import cv2

    picture = cv2.cvtColor(np.ascontiguousarray(pixels.transpose(1, 2, 0)), cv2.COLOR_RGB2BGR)
    coded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, _SEEN_QUALITY])[1]
    name = f"{number:04d}-seen.jpg"
    write_bytes(folder / name, coded.tobytes())
    return name


def clear_copies(folder: Path) -> None:
    """Remove the copies of an older list; nothing else in the folder is touched.

    Raises:
        DataError: One cannot be removed.
    """
    try:
        for path in folder.iterdir() if folder.is_dir() else ():
            if _FULL_NAME.fullmatch(path.name):
                path.unlink()
    except OSError as error:
        raise DataError(
            f"{folder} cannot be cleared ({error.strerror}): mend its rights, or name another --out."
        ) from error
