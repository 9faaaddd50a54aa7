"""Ways in which a photograph goes wrong, made on purpose: what a gate, and a model's own doubt, are tried on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


def _blurred(image: Pixels) -> Pixels:
    import cv2

    return np.stack([cv2.GaussianBlur(channel, (0, 0), 4 * image.shape[1] / 224) for channel in image])


def _half_covered(image: Pixels) -> Pixels:
    covered = image.copy()
    covered[:, image.shape[1] // 2 :] = 0
    return covered


SPOILS: Mapping[str, Callable[[Pixels], Pixels]] = MappingProxyType(
    {
        "darkened to a tenth": lambda image: (image * 0.1).astype(np.uint8),
        "blurred": _blurred,
        "half covered": _half_covered,
        "overexposed": lambda image: np.clip(image * 2.5, 0, 255).astype(np.uint8),
    }
)
"""By name; each takes and gives uint8 [3, S, S]. The blur is 4 of 224 pixels wide."""
