"""A ridge head as one linear layer: on features as a network gives them, of the strength that leave-one-out prefers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedretina.analytic.ridge import leave_one_out, own_head
from fedretina.analytic.sums import Sums

_STILL = 1e-6


class RidgeLayer(NamedTuple):
    """A linear layer whose outputs are the scores of a ridge regression, near 0 to 1.

    Attributes:
        weight: [K, F], float64.
        bias: [K], float64.
        strength: lambda.
        left_out: What each training image would score if the layer had not seen it, [n, K], float64.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    left_out: Tensor


def ridge_layer(features: Tensor, labels: Tensor, grades: int) -> RidgeLayer:
    """Fit a ridge regression on standardised features; the layer takes the features as they are.

    Args:
        features: [n, F].
        labels: int64 [n], 0 to grades - 1.
        grades: K, the outputs.

    Raises:
        DataError: A feature is not finite.
    """
    wide = features.double()
    mean, deviation = wide.mean(0), wide.std(0, correction=0)
    # A feature that hardly moves says nothing, and dividing by its deviation would blow up what noise it has.
    still = deviation <= _STILL * (1 + mean.abs())
    per_unit = torch.where(still, torch.zeros_like(deviation), 1 / deviation)
    phi = torch.cat([(wide - mean) * per_unit, torch.ones(len(wide), 1, dtype=torch.float64)], dim=1)
    shares = torch.nn.functional.one_hot(labels, grades).double()
    head = own_head(phi, shares, Sums.of(phi, shares, by_class=False).totals())
    weight = head.weight[:-1] * per_unit.unsqueeze(1)  # [F, K], of features that are not standardised
    bias = head.weight[-1] + head.prior - mean @ weight
    left_out = leave_one_out(phi, shares, torch.tensor([head.strength], dtype=torch.float64))[0]
    return RidgeLayer(weight.T.contiguous(), bias, head.strength, left_out)
