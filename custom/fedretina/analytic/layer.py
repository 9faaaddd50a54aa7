"""A ridge head as one linear layer: on features as a network gives them, of the strength that leave-one-out prefers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedretina.analytic.features import FeatureMap
from fedretina.analytic.ridge import leave_one_out, own_head
from fedretina.analytic.sums import Sums


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
    """Fit a ridge regression on centred and scaled features (`FeatureMap.of_site`); the layer takes them as they are.

    Args:
        features: [n, F].
        labels: int64 [n], 0 to grades - 1.
        grades: K, the outputs.

    Raises:
        DataError: A feature is not finite.
    """
    mapped = FeatureMap.of_site(features, features.shape[1] + 1, 0)  # all of them, so there is no projection to draw
    phi = mapped(features)
    shares = torch.nn.functional.one_hot(labels, grades).double()
    head = own_head(phi, shares, Sums.of(phi, shares, by_class=False).totals())
    weight = head.weight[:-1] / mapped.scale  # [F, K], of features as they are
    bias = head.weight[-1] + head.prior - mapped.mean @ weight
    left_out = leave_one_out(phi, shares, torch.tensor([head.strength], dtype=torch.float64))[0]
    return RidgeLayer(weight.T.contiguous(), bias, head.strength, left_out)
