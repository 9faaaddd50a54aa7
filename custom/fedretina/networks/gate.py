"""How far an image lies from a site's own training images, beside the head and on the same features."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Gate(nn.Module):
    """Distance from the site's training images over the site's limit: |W f(x) + b|^2, above 1 beyond the limit.

    It holds buffers, no parameters: no optimiser moves it, and it never leaves the site. `analytic.distance.gate_layer`
    fits it; until then the distance is 0, and nothing lies beyond.

    Args:
        features: Length F of the features.
        rows: Length of W f(x).
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, features: int, rows: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(rows, features))
        self.register_buffer("bias", torch.zeros(rows))

    def forward(self, features: Tensor) -> Tensor:
        """Return the distances `[B]` of features `[B, F]`."""
        return nn.functional.linear(features, self.weight, self.bias).square().sum(1)
