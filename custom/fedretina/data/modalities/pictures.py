"""What the transforms of all pictures share, whatever they show: steps over uint8 arrays, run by MONAI's Compose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from fedretina.data.decode import decode_image
from fedretina.errors import DataError

Pixels = NDArray[np.uint8]
Step = Callable[[Pixels], Pixels]


class ResizeArea:
    """Resize to a square, uint8 [S, S, 3] or [S, S]: area averages when it shrinks, bilinear when it grows."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Pixels) -> Pixels:
        """Return the resized image; the aspect of an image that is not square is lost."""
        return resized(image, self.size, self.size, max(image.shape[:2]) > self.size)


class ChannelsFirst:
    """uint8 [S, S, 3] to contiguous [3, S, S], as the cache stores it."""

    def __call__(self, image: Pixels) -> Pixels:
        """Return the transposed copy."""
        return np.ascontiguousarray(image.transpose(2, 0, 1))


def resized(image: Pixels, height: int, width: int, shrinks: bool) -> Pixels:
    """Resize by area averages where it shrinks, which keeps small lesions from aliasing, else bilinearly."""
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cast(Pixels, cv2.resize(image, (width, height), interpolation=method))


def padded_square(image: Pixels, level: int) -> Pixels:
    """The image [H, W] or [H, W, 3] in the middle of a square of one level; its side is the longer one's."""
    height, width = image.shape[:2]
    size = max(height, width)
    square = np.full((size, size, *image.shape[2:]), level, np.uint8)
    y, x = (size - height) // 2, (size - width) // 2
    square[y : y + height, x : x + width] = image
    return square


def picture_pipeline(steps: Sequence[Step]) -> Callable[[str | Path], Pixels]:
    """Load a picture and put it through the steps: path to what the last of them gives.

    The decoder is our own and not MONAI's LoadImage, so that every damaged file gives one kind of error and 16
    bits, alpha and orientation have one meaning.

    Args:
        steps: From uint8 [H, W, 3], RGB, on.

    Raises:
        DataError: When called on a file that cannot be read.
    """
    from monai.transforms import Compose  # takes seconds, and only images that are not in the cache need it

    compose = Compose(list(steps), log_stats=False)

    def run(path: str | Path) -> Pixels:
        # Compose wraps every error and logs its input, so it sees pixels only, never the name of a file.
        pixels = decode_image(path)
        try:
            return cast(Pixels, compose(pixels))
        except RuntimeError as error:
            raise DataError(f"{path} of shape {pixels.shape} cannot be transformed ({error}).") from error

    return run
