"""The array file of transformed images: written row by row, cut to the rows that came, mapped when it is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import DataError

Pixels = NDArray[np.uint8]


class PixelArrayWriter:
    """Writes a NumPy file of uint8 rows whose number is known at the end alone; memory holds one row.

    Attributes:
        rows: How many rows were written.

    Args:
        handle: A new file, open for writing.
        most: At most so many rows will come.
        sample: Shape of a row: channels, height, width.
    """

    def __init__(self, handle: BinaryIO, most: int, sample: tuple[int, int, int]) -> None:
        self._handle = handle
        self._sample = sample
        self.rows = 0
        self._write_header(most)

    def add(self, pixels: Pixels) -> int:
        """Write a row and give its number."""
        self._handle.write(pixels.tobytes())
        self.rows += 1
        return self.rows - 1

    def finish(self) -> None:
        """Tell the file how many rows it has, and wait until the disk holds all of it."""
        self._handle.seek(0)
        self._write_header(self.rows)
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def _write_header(self, rows: int) -> None:
        # NumPy pads the header for growth of the first axis, so it keeps its length when `rows` is corrected.
        np.lib.format.write_array_header_1_0(
            self._handle, {"descr": "|u1", "fortran_order": False, "shape": (rows, *self._sample)}
        )


def map_pixels(path: Path, rows: int, sample: tuple[int, int, int]) -> Pixels:
    """Map the array's file read-only; an array without a row needs none.

    Args:
        path: The file.
        rows: How many rows it must have.
        sample: Shape of a row.

    Returns:
        uint8 [rows, channels, height, width].

    Raises:
        DataError: It is missing, damaged, or holds another array.
    """
    shape = (rows, *sample)
    if rows == 0:
        return np.empty(shape, np.uint8)
    try:
        images: Pixels = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is missing or damaged ({error}).") from error
    if images.shape != shape or images.dtype != np.uint8:
        raise DataError(f"{path} holds {images.dtype} {images.shape}, expected uint8 {shape}.")
    return images
