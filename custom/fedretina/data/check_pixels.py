"""What a check measures on one image's pixels: size, retina, colours, and what duplicates are known by.

This module imports MONAI (seconds), as the transforms do.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fedretina.data.decode import eight_bits, read_pixels
from fedretina.data.fundus_transforms import FieldOfViewCrop
from fedretina.data.picture_transforms import Pixels
from fedretina.errors import DataError

_IN_FLIGHT = 4  # images a worker, so that large photographs do not fill the memory
_COLOUR_SIDE = 64
_DETAIL_SIDE, _DETAIL_GRID = 128, 24
_FINE, _COARSE, _CONTRAST = 2.5, 6.0, 12.0  # standard deviations of Gaussians, pixels of _DETAIL_SIDE


class PixelFacts(NamedTuple):
    """What one image measures.

    Attributes:
        width: Of the decoded image, pixels.
        height: Of the decoded image, pixels.
        retina: Width and height of the field of view; None where no dark border was found.
        digest: SHA-256 of the decoded pixels and their shape.
        colour: Mean red, green and blue of the retina, 0 to 255.
        spread: Standard deviation of the retina's luminance.
        chroma: Mean distance of a pixel's most deviant channel from its grey.
        burnt: Share of the retina where all channels are at least 245.
        detail: float16 [D], a unit vector of the retina's fine structure, or zeros where there is none; see `_detail`.
        peak: Largest stored value of an image of 16 bits, 0 to 65535; None of one of 8 bits.
    """

    width: int
    height: int
    retina: tuple[int, int] | None
    digest: str
    colour: tuple[float, float, float]
    spread: float
    chroma: float
    burnt: float
    detail: NDArray[np.float16]
    peak: int | None = None

    @property
    def luminance(self) -> float:
        """Mean luminance of the retina, 0 to 255."""
        red, green, blue = self.colour
        return 0.299 * red + 0.587 * green + 0.114 * blue


def measure(stored: Pixels | NDArray[np.uint16]) -> PixelFacts:
    """Measure an image, uint8 or uint16 [H, W, 3], RGB; all but the peak as decoding makes it, 8 bits."""
    image = eight_bits(stored)
    height, width = image.shape[:2]
    box = FieldOfViewCrop().box(image)
    crop = image if box is None else image[box[0] : box[1], box[2] : box[3]]
    small = cv2.resize(crop, (_COLOUR_SIDE, _COLOUR_SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)
    retina = small[_disc(_COLOUR_SIDE, 0.9)]
    red, green, blue = (float(value) for value in retina.mean(axis=0))
    return PixelFacts(
        width,
        height,
        None if box is None else (box[3] - box[2], box[1] - box[0]),
        hashlib.sha256(f"{height} {width} ".encode() + np.ascontiguousarray(image).data).hexdigest(),
        (red, green, blue),
        float(np.std(retina @ np.array([0.299, 0.587, 0.114], np.float32))),
        float(np.mean(np.max(np.abs(retina - retina.mean(axis=1, keepdims=True)), axis=1))),
        float(np.mean(np.min(retina, axis=1) >= 245)),
        _detail(crop),
        int(stored.max()) if stored.dtype == np.uint16 else None,
    )


def measure_files(
    root: Path,
    files: Sequence[str],
    workers: int,
    done: Callable[[], None],
    decode: Callable[[str | Path], Pixels | NDArray[np.uint16]] = read_pixels,
) -> Iterator[PixelFacts | DataError]:
    """Decode each file once and measure it, in the order given; a file that cannot be read gives its error.

    Args:
        root: Image root.
        files: Names relative to it.
        workers: Threads; OpenCV lets the interpreter's lock go. 0 takes one a core, at most 8.
        done: Called after each image.
        decode: What reads a file, to uint8 or uint16 [H, W, 3].
    """

    def one(file: str) -> PixelFacts | DataError:
        try:
            return measure(decode(root / file))
        except DataError as error:
            return error

    threads = workers or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for begin in range(0, len(files), threads * _IN_FLIGHT):
            for facts in pool.map(one, files[begin : begin + threads * _IN_FLIGHT]):
                done()
                yield facts


def _detail(crop: Pixels) -> NDArray[np.float16]:
    """Vessels, disc and lesions as a unit vector whose product with another is their correlation.

    A difference hash of fundus photographs compares little but the lighting, which all images of a camera share: on
    four public sets 64 bits within a distance of 2 call one pair in 80 to 300 duplicates. So the green channel is
    band-passed and divided by its local contrast first, inside the retina alone, since the rim of the disc is the same
    in all images. Equal after a change of size, aspect, brightness or compression.
    """
    small = cv2.resize(crop, (_DETAIL_SIDE, _DETAIL_SIDE), interpolation=cv2.INTER_AREA)
    bright = cv2.medianBlur(small.max(axis=2), 5).astype(np.float32)
    inside = _disc(_DETAIL_SIDE, 0.86) & (bright > 0.25 * np.percentile(bright, 95))
    mask = cv2.erode(inside.astype(np.uint8), np.ones((5, 5), np.uint8)).astype(np.float32)

    def smooth(values: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
        weight: NDArray[np.float32] = cv2.GaussianBlur(mask, (0, 0), sigma) + np.float32(1e-3)
        blurred: NDArray[np.float32] = cv2.GaussianBlur(values * mask, (0, 0), sigma)
        return blurred / weight

    green = small[..., 1].astype(np.float32)
    band = (smooth(green, _FINE) - smooth(green, _COARSE)) * mask
    flat = band / (np.sqrt(smooth(band * band, _CONTRAST)) + np.float32(0.5))
    grid = cv2.resize(flat, (_DETAIL_GRID, _DETAIL_GRID), interpolation=cv2.INTER_AREA)[_disc(_DETAIL_GRID, 0.9)]
    length = float(np.linalg.norm(grid))
    # A blank or nearly black image has only rounding left; it is like no other.
    unit: NDArray[np.float32] = grid / length if length > 0.05 * len(grid) ** 0.5 else np.zeros_like(grid)
    return unit.astype(np.float16)


@cache
def _disc(side: int, share: float) -> NDArray[np.bool_]:
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    disc: NDArray[np.bool_] = y**2 + x**2 < (share * side / 2) ** 2
    return disc
