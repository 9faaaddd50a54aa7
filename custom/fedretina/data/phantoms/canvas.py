"""What drawings begin and end with: the canvas, and the mark that says synthetic."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedretina.data.decode import PNG_MARK, WAVE_MARK
from fedretina.data.wav import wave_bytes
from fedretina.errors import DataError

Plane = NDArray[np.float32]
Points = NDArray[np.float64]  # in units, [..., 2]
Values = float | NDArray[np.float64] | NDArray[np.int64]
_LEAST = 1.0  # half the thickness of the smallest spot, in pixels of the finished picture
_SHIFT = 4  # fractional bits of cv2's coordinates


class Canvas:
    """A square grid of pixels in units of half its side; x grows to the right, y downwards.

    Everything is placed and sized in units, so that the same draws give the same scene at any resolution.

    Args:
        size: Side of the finished picture in pixels.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.side = max(size, min(2 * size, 192))  # thin vessels need more pixels than a small picture has
        axis = ((np.arange(self.side, dtype=np.float32) + 0.5) / self.side) * 2 - 1
        self.x = axis[None, :]
        self.y = axis[:, None]
        self.radius2 = self.x**2 + self.y**2

    def pixels(self, units: float) -> float:
        """A length in pixels."""
        return units / 2 * self.side

    def fixed(self, points: Points) -> NDArray[np.int32]:
        """Points in units to cv2's fixed-point pixels, same shape."""
        return np.asarray(np.round(((points + 1) / 2 * self.side - 0.5) * 2**_SHIFT), dtype=np.int32)

    def empty(self) -> NDArray[np.uint8]:
        """A mask of zeros, uint8 [side, side]."""
        return np.zeros((self.side, self.side), np.uint8)

    def blob(self, x: float, y: float, wide: float, high: float | None = None) -> Plane:
        """A Gaussian bump of height 1 at a point, float32 [side, side]."""
        column = np.exp(np.square(self.x - np.float32(x)) * np.float32(-0.5 / wide**2))
        row = np.exp(np.square(self.y - np.float32(y)) * np.float32(-0.5 / (high or wide) ** 2))
        return np.asarray(column * row, dtype=np.float32)

    def smooth_noise(self, rng: np.random.Generator, columns: int, rows: int | None = None) -> Plane:
        """Smooth noise with about unit variance at its knots, float32 [side, side]."""
        import cv2

        knots = rng.standard_normal((rows or columns, columns), dtype=np.float32)
        return np.asarray(cv2.resize(knots, (self.side, self.side), interpolation=cv2.INTER_CUBIC), dtype=np.float32)

    def ellipses(
        self, mask: NDArray[np.uint8], points: Points, axes: Points, turns: Values = 0.0, values: Values = 255
    ) -> None:
        """Fill ellipses; none is thinner than two pixels of the finished picture.

        So a thumbnail keeps the smallest lesions, larger than life.

        Args:
            mask: uint8 [side, side], changed in place.
            points: Their centres in units, [B, 2].
            axes: Their half axes in units, [B, 2].
            turns: Angle of the first axis in degrees, [B] or one for all.
            values: Weight of each, 0 to 255, [B] or one for all.
        """
        import cv2

        half = np.maximum(self.pixels(1) * np.asarray(axes), _LEAST * self.side / self.size)
        shape = np.round(half * 2**_SHIFT).astype(int).tolist()
        weights = np.broadcast_to(values, len(shape)).tolist()
        angles = np.broadcast_to(turns, len(shape)).tolist()
        for point, axis, angle, weight in zip(self.fixed(points).tolist(), shape, angles, weights, strict=True):
            cv2.ellipse(mask, point, axis, angle, 0, 360, weight, -1, cv2.LINE_AA, _SHIFT)

    def lines(self, mask: NDArray[np.uint8], paths: Sequence[NDArray[np.int32]], width: float, value: int) -> None:
        """Draw paths of fixed points in one width; those finer than a pixel are a pixel wide with less weight."""
        import cv2

        wide = self.pixels(width)
        weight = int(value * min(1.0, wide) + 0.5)
        cv2.polylines(mask, paths, False, weight, max(1, int(wide + 0.5)), cv2.LINE_AA, _SHIFT)

    def polygon(self, mask: NDArray[np.uint8], points: Points, value: int) -> None:
        """Fill a polygon, [P, 2] in units."""
        import cv2

        cv2.fillPoly(mask, [self.fixed(points)], value, cv2.LINE_AA, _SHIFT)


def soften(mask: NDArray[np.uint8], pixels: float) -> Plane:
    """A mask as weights 0 to 1, blurred by a Gaussian of so many pixels."""
    import cv2

    soft = cv2.GaussianBlur(mask, (0, 0), pixels) if pixels >= 0.3 else mask
    return np.asarray(soft, dtype=np.float32) * np.float32(1 / 255)


SMALLEST = 128  # side in pixels from which the words can be read
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
    chunk = struct.pack(">I", len(PNG_MARK) - 4) + PNG_MARK + struct.pack(">I", zlib.crc32(PNG_MARK))
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
        path.write_bytes(wave_bytes(rate, samples, WAVE_MARK))
    except OSError as error:
        raise DataError(f"{path} was not written ({error}): choose a folder that you may write to.") from error
