"""Images that a reader writes into the folder of an import."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import DataError
from fedretina.storage import write_output


def own_folder(folder: Path) -> None:
    """Make a folder that is its owner's alone, as one of patients' images must be.

    Raises:
        DataError: It cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be made ({error.strerror}): choose another folder for the import.") from error


def write_png(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write grey [H, W] or RGB [H, W, 3] pixels as a PNG file that holds nothing else, atomically.

    Raises:
        DataError: It was not written.
    """
    import cv2

    done, data = cv2.imencode(".png", pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))
    if not done:
        raise DataError(f"{path} was not written: the pixels cannot be stored as PNG.")
    write_file(path, data.tobytes())


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically; the import syncs all of them at once.

    Raises:
        DataError: It was not written.
    """
    write_output(path, data, durable=False)
