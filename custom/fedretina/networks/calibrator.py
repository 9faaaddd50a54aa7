"""The calibrator: a temperature for each image, told from its features (multi-domain temperature scaling)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LOW, HIGH = 0.05, 20.0
"""Bounds of a temperature, as for one temperature per site."""


class Calibrator(nn.Module):
    """T(x) = w . f(x) + b within `LOW` to `HIGH`, from the features f(x) that enter the head.

    It holds buffers, no parameters: no optimiser moves it. The server solves for it once, after training
    (`aggregation.temperatures`); until then T(x) is 1 and divides no bit away. It never changes which class is the
    largest.

    Args:
        features: Length F of the features.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(features))
        self.register_buffer("bias", torch.ones(()))

    def forward(self, features: Tensor) -> Tensor:
        """Return the temperatures `[B, 1]` of features `[B, F]`."""
        return (features @ self.weight + self.bias).clamp(LOW, HIGH).unsqueeze(1)
