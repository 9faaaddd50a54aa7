"""A folder of images as it lies on disk, where names differ from the lists in case and ending."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fedretina.errors import DataError
from fedretina.plurals import counted

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp")


class ImageFolder:
    """Finds images by the name that a label list gives them.

    Args:
        root: The set's folder.
        choices: Folders below it, with '/' and "" for the set's folder itself; the first that exists is meant.
    """

    def __init__(self, root: Path, choices: Sequence[str]) -> None:
        self.folder = next((choice for choice in choices if (root / choice).is_dir()), choices[0])
        self._names = image_names(root / self.folder)
        self._lower: dict[str, list[str]] = {}
        for name in self._names:
            self._lower.setdefault(loose(name), []).append(name)
            self._lower.setdefault(loose(PurePosixPath(name).stem), []).append(name)
        self._found: set[str] = set()

    def find(self, name: str, suffix: str = "") -> str:
        """The path of an image relative to the set's folder; the listed name where there is no such image.

        The exact name comes first, then the same name in another case or with its umlauts composed otherwise, then one
        with another ending: copies of the sets have been converted, cameras write .JPG, and a Mac takes umlauts apart.

        Args:
            name: As in the list.
            suffix: The ending that the list leaves out.

        Raises:
            DataError: Several files could be meant.
        """
        listed = name + suffix
        for key in (loose(listed), loose(name) if suffix else _stem(listed)):
            close = self._lower.get(key, [])
            if listed in close or len(close) == 1:
                found = listed if listed in close else close[0]
                self._found.add(found)
                return self._path(found)
            if close:
                raise DataError(
                    f"{self._path(listed)} could be any of {', '.join(sorted(close)[:5])}: keep one of these files."
                )
        return self._path(listed)

    def unused(self) -> int:
        """How many images no list has named."""
        return len(self._names - self._found)

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name


def image_names(folder: Path) -> set[str]:
    """Names of the images in a folder; hidden files, such as those that macOS adds to archives, are none."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if is_image(entry.name)}
    except OSError:
        return set()


def is_image(name: str) -> bool:
    """Whether a name has the ending of an image and is not hidden."""
    return not name.startswith(".") and name.lower().endswith(IMAGE_SUFFIXES)


def _stem(name: str) -> str:
    return loose(PurePosixPath(name).stem if is_image(name) else name)


def loose(name: str) -> str:
    """A name without regard to case, and to whether an umlaut is one sign (NFC) or a letter and two dots (NFD)."""
    return unicodedata.normalize("NFC", name).lower()


def no_patients() -> str:
    """Each image stands as its own patient."""
    return (
        "the set names no patients: each image is its own, so two eyes of a patient may fall into different splits, "
        "and figures may be too good."
    )


def unlisted(*folders: ImageFolder) -> tuple[str, ...]:
    """Images on disk that no list has named, if there are any; to be asked after all lists are read."""
    count = sum(folder.unused() for folder in folders)
    if not count:
        return ()
    return (f"{counted(count, 'image has', 'images have')} no label in the set's lists and stay out.",)
