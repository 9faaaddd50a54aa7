"""The photographs of a folder, what in it was not looked at, and copies of them for a page, small and whole."""

from __future__ import annotations

import base64
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping, Set
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fedretina.data.decode import decode_image
from fedretina.errors import DataError
from fedretina.storage import write_bytes

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp"})
OF_SIGNALS = frozenset({".wav"})
SIDE = 176
FULL_FOLDER = "worklist_pictures"
_SHOWN_BY_BROWSERS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
_FULL_NAME = re.compile(r"[0-9]{4,}\.(jpg|jpeg|png|webp|bmp)")
_QUALITY = 80


class PhotographFolder(NamedTuple):
    """What a folder holds.

    Attributes:
        files: Photographs relative to the folder, with '/', in the order of their names.
        left_out: What was not looked at and how many: endings of other files, and linked folders.
    """

    files: tuple[str, ...]
    left_out: Mapping[str, int]


def find_photographs(folder: Path, suffixes: Set[str] = SUFFIXES) -> PhotographFolder:
    """List the photographs of a folder and the folders in it, by the ending of their names; or other files by theirs.

    A photograph that cannot be read is listed all the same, so that its patient is not forgotten. Names that begin
    with a dot belong to the system and are passed over. A link to a folder is not followed, since it may lead round in
    a ring, but it is counted.

    Raises:
        DataError: The folder, or one in it, cannot be listed.
    """
    files: list[str] = []
    left_out: Counter[str] = Counter()

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
            if PurePosixPath(name).suffix.lower() in suffixes and _may_be_read(here / name):
                files.append((here / name).relative_to(folder).as_posix())
            else:
                left_out[PurePosixPath(name).suffix.lower() or "no ending"] += 1
    return PhotographFolder(tuple(sorted(files)), {kind: left_out[kind] for kind in sorted(left_out) if left_out[kind]})


def _may_be_read(path: Path) -> bool:
    """Whether reading ends: a pipe or a device would wait for ever. A broken link is listed and fails later."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True


def thumbnail(path: Path) -> str | None:
    """A JPEG of at most `SIDE` pixels a side as a data URI, about 7 kB; None where the photograph cannot be read.

    It shows the photograph as it was taken, in its own shape, and not what the network was fed.
    """
    import cv2

    try:
        pixels = decode_image(path)
    except DataError:
        return None
    height, width = pixels.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA) if scale < 1 else pixels
    done, coded = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return f"data:image/jpeg;base64,{base64.b64encode(coded.tobytes()).decode()}" if done else None


def full_copy(path: Path, folder: Path, number: int) -> str | None:
    """Put a photograph into a folder such that a browser shows every pixel of it; None where it cannot be read.

    What browsers know is copied byte by byte; the rest, such as TIFF, is written as PNG, which loses nothing of 8 bits.
    Its name is a number, since names of files may name patients.

    Args:
        path: The photograph.
        folder: Where the copy goes; it is there.
        number: Of the photograph in the list, 1 or more.

    Returns:
        Name of the copy.

    Raises:
        StateError: The disk is full or the folder not writable.
    """
    import cv2

    suffix = path.suffix.lower()
    try:
        if suffix in _SHOWN_BY_BROWSERS:
            whole = path.read_bytes()
        else:
            suffix = ".png"
            done, coded = cv2.imencode(suffix, cv2.cvtColor(decode_image(path), cv2.COLOR_RGB2BGR))
            if not done:
                return None
            whole = coded.tobytes()
    except (DataError, OSError):
        return None
    name = f"{number:04d}{suffix}"
    write_bytes(folder / name, whole)
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
