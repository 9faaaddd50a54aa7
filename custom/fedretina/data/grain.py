"""Blur and speckle with a strength per sample, whose bits do not depend on the batch."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

_GOLDEN = 0x9E3779B9
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - 2**32  # as signed 32-bit numbers
_BYTES = 0x00FF00FF
_MEAN, _DEVIATION = 510.0, math.sqrt(4 * (256**2 - 1) / 12)  # of a sum of four bytes


def gaussian_blur(pixels: torch.Tensor, sigma: NDArray[np.float64], most: float) -> torch.Tensor:
    """Blur each image with a Gaussian of its own, cut at three times the widest; edges are repeated.

    It is written as shifts and products, for the bits of a convolution depend on the batch that it is given.

    Args:
        pixels: float32 [B, C, S, S], on any device.
        sigma: float64 [B], standard deviations in pixels, above 0.
        most: The widest that may come, pixels; it decides how far the taps reach, whatever this batch holds.

    Returns:
        float32 [B, C, S, S].
    """
    reach, size = max(1, math.ceil(3 * most)), pixels.shape[-1]
    taps = np.exp(-0.5 * (np.arange(reach + 1) / sigma[:, None]) ** 2)
    taps /= taps[:, :1] + 2 * taps[:, 1:].sum(1, keepdims=True)
    weights = torch.from_numpy(taps.astype(np.float32)).to(pixels.device).view(len(taps), reach + 1, 1, 1, 1).unbind(1)
    for axis, pad in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
        wide = F.pad(pixels, pad, mode="replicate")
        pixels = wide.narrow(axis, reach, size) * weights[0]
        for k in range(1, reach + 1):
            pixels += (wide.narrow(axis, reach - k, size) + wide.narrow(axis, reach + k, size)).mul_(weights[k])
    return pixels


def speckle(pixels: torch.Tensor, amount: NDArray[np.float64], keys: NDArray[np.float64]) -> torch.Tensor:
    """Multiply each pixel by 1 plus noise, the same for all channels, as the grain of an OCT scan.

    The noise of a pixel is the mix of its image's key and its place (a 32-bit integer hash: two multiplications and
    three shifts), the sum of whose four bytes is close to normal and never beyond 3.5 deviations. Integers
    give the same bits on every device.

    Args:
        pixels: float32 [B, C, S, S] in [0, 1], on any device.
        amount: float64 [B], standard deviation of the noise.
        keys: float64 [B], a draw in [0, 1) for each image.

    Returns:
        float32 [B, C, S, S] in [0, 1].
    """
    size = pixels.shape[-1]
    places = np.arange(size * size, dtype=np.uint32).reshape(1, 1, size, size) * np.uint32(_GOLDEN)
    roots = (keys * 2.0**32).astype(np.uint32).reshape(-1, 1, 1, 1)
    x = torch.from_numpy(places.view(np.int32)).to(pixels.device) + torch.from_numpy(roots.view(np.int32)).to(
        pixels.device
    )
    x ^= (x >> 16) & 0xFFFF  # the shift of a signed number draws in its sign
    x *= _FIRST
    x ^= (x >> 15) & 0x1FFFF
    x *= _SECOND
    x ^= (x >> 16) & 0xFFFF
    pairs = (x & _BYTES) + ((x >> 8) & _BYTES)
    total = ((pairs & 0xFFFF) + (pairs >> 16)).float()
    scale = amount / _DEVIATION
    factor = total.mul_(_column(scale, pixels)).add_(_column(1 - _MEAN * scale, pixels))
    return (pixels * factor).clamp_(0, 1)


def _column(values: NDArray[np.float64], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(like.device).view(-1, 1, 1, 1)
