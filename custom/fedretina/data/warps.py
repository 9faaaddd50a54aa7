"""Affine sampling of a batch, whose bits do not depend on the batch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F


def affine_sample(pixels: torch.Tensor, matrices: NDArray[np.float64]) -> torch.Tensor:
    """Sample each image through an affine map of its own, bilinear and with black around.

    Args:
        pixels: float32 [B, C, S, S] in [0, 1], on any device.
        matrices: float64 [B, 2, 3], from where a pixel of the result stands to where it is read, (x, y, 1) to
            (x, y); the image's edges are -1 and 1.

    Returns:
        float32 [B, C, S, S] in [0, 1].
    """
    size = pixels.shape[-1]
    axis = (torch.arange(size, dtype=torch.float32, device=pixels.device) * 2 + 1) / size - 1
    x, y = axis.view(1, 1, size), axis.view(1, size, 1)
    entries = torch.from_numpy(matrices.astype(np.float32)).to(pixels.device).view(-1, 2, 3, 1, 1)
    # affine_grid is a batched matrix product whose last bit depends on the batch; these products do not.
    rows = [(row[:, 0] * x + row[:, 2]) + row[:, 1] * y for row in entries.unbind(1)]
    grid = torch.stack(rows, dim=-1)
    return F.grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=False).clamp_(0, 1)
