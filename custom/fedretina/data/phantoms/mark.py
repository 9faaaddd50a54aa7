"""How a phantom is marked as synthetic: in words in its corner, and in a chunk of its PNG or WAV file."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedretina.data.waves import wave_bytes
from fedretina.errors import DataError

SMALLEST = 128  # side in pixels from which the words can be read
_KEYWORD, _TEXT = b"Synthetic", b"fedretina phantom, not a patient"
_WORDS = _KEYWORD + b": " + _TEXT  # of a WAV file, in its list of information
_PNG = b"\x89PNG\r\n\x1a\n"
_HEAD = 8 + 25  # the signature and the header chunk, after which ours stands
_GREY = 110
# Five rows a letter.
_LETTERS = {
    "S": "111 100 111 001 111",
    "Y": "101 101 010 010 010",
    "N": "1001 1101 1011 1001 1001",
    "T": "111 010 010 010 010",
    "H": "101 101 111 101 101",
    "E": "111 100 110 100 111",
    "I": "111 010 010 010 111",
    "C": "111 100 100 100 111",
}


def stamp(image: NDArray[np.uint8]) -> None:
    """Write SYNTHETIC into the lower left corner of an image, uint8 [S, S, 3], in place.

    The words are the same in every phantom, so they tell no grade, and lie in the black beside a round field of view.
    An image of less than 128 pixels stays as it is: there `SiteData.synthetic` and the file's chunk are the mark.
    """
    size = image.shape[0]
    if size < SMALLEST:
        return
    words = _words(size // SMALLEST)
    high, wide = words.shape
    image[size - high :, :wide] = words[..., None]


@cache
def _words(scale: int) -> NDArray[np.uint8]:
    """SYNTHETIC in grey with a dark rim, uint8 [7, 38] times the scale."""
    columns = [np.array([list(row) for row in _LETTERS[letter].split()], np.uint8) for letter in "SYNTHETIC"]
    gap = np.zeros((5, 1), np.uint8)
    text = np.concatenate([part for column in columns for part in (column, gap)], 1)
    return np.kron(np.pad(text, ((1, 1), (1, 0))), np.full((scale, scale), _GREY, np.uint8))


def write_png(path: Path, image: NDArray[np.uint8]) -> None:
    """Write a phantom, uint8 [S, S, 3], RGB, as a PNG file that says what it is.

    Raises:
        DataError: The file cannot be written.
    """
    import cv2

    data = cv2.imencode(".png", np.ascontiguousarray(image[..., ::-1]))[1].tobytes()
    body = b"tEXt" + _KEYWORD + b"\0" + _TEXT
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    try:
        path.write_bytes(data[:_HEAD] + chunk + data[_HEAD:])
    except OSError as error:
        raise DataError(f"{path} was not written ({error}): choose a folder that you may write to.") from error


def write_wave(path: Path, rate: int, samples: NDArray[np.generic]) -> None:
    """Write a phantom's signal, int16 or float32, as a WAV file that says what it is.

    Raises:
        DataError: The file cannot be written.
    """
    try:
        path.write_bytes(wave_bytes(rate, samples, _WORDS))
    except OSError as error:
        raise DataError(f"{path} was not written ({error}): choose a folder that you may write to.") from error


def is_phantom(path: Path) -> bool:
    """Whether a file is a PNG or a WAV with the phantoms' mark; False also where it cannot be read."""
    try:
        with open(path, "rb") as handle:
            head = handle.read(1024)
    except OSError:
        return False
    if head.startswith(b"RIFF"):
        return _WORDS in head
    return head.startswith(_PNG) and b"tEXt" + _KEYWORD + b"\0" + _TEXT in head
