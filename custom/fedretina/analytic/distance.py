"""How far an image lies from all that the heads were fitted on: a gate for out-of-distribution images.

Mahalanobis distance to the nearest class mean under the pooled covariance (Lee et al., "A Simple Unified Framework for
Detecting Out-of-Distribution Samples", NeurIPS 2018), computed from sums alone. No head's own doubt knows an image of
another kind; on frozen features this distance does (docs/doubt.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedretina.analytic.features import projection
from fedretina.analytic.sums import Sums
from fedretina.errors import DataError

SHRINK = 0.3
"""Share of the scaled identity in the covariance, so that it has an inverse however few the images."""
DIRECTIONS = 384
"""Of wider features so many projections are taken: more told strangers no better."""
_SLACK = 1e-3
"""Of the limit: the layer computes in float32, and the validation image that sets the limit must not fall beyond it."""


@dataclass(frozen=True)
class ClassDistance:
    """Squared Mahalanobis distance to the nearest class mean.

    Attributes:
        means: [C', d] of the classes that occur.
        factor: Lower Cholesky factor of the shrunk covariance, [d, d].
    """

    means: Tensor
    factor: Tensor

    @classmethod
    def of(cls, sums: Sums, shrink: float = SHRINK) -> ClassDistance:
        """From the sums of a site, or of all.

        Args:
            sums: Over features without the constant column, or with it: a feature that never varies adds nothing.
            shrink: Share of the scaled identity in the covariance, above 0 and at most 1.

        Raises:
            DataError: Fewer than two images, or `shrink` out of range.
        """
        if not 0 < shrink <= 1:
            raise DataError(f"shrink is above 0 and at most 1, got {shrink!r}.")
        there = sums.counts > 0
        images = float(sums.counts.sum())
        if images < 2:
            raise DataError(f"a distance needs at least two images, got {images:g}.")
        means = sums.first[there] / sums.counts[there].unsqueeze(1)
        within = sums.second.sum(0) - means.T @ (sums.counts[there].unsqueeze(1) * means)
        covariance = within / max(images - int(there.sum()), 1.0)
        scale = float(covariance.diagonal().mean())
        if not scale > 0:
            raise DataError("the features of these images do not vary: there is no distance to measure.")
        eye = torch.eye(len(covariance), dtype=torch.float64)
        shrunk = (1 - shrink) * (covariance + covariance.T) / 2 + shrink * scale * eye
        return cls(means, torch.linalg.cholesky(shrunk))

    def __call__(self, features: Tensor) -> Tensor:
        """Squared distance to the nearest class mean, [n], for features [n, d]."""
        apart = features.double().unsqueeze(1) - self.means  # [n, C', d]
        solved = torch.linalg.solve_triangular(self.factor, apart.flatten(0, 1).T, upper=False)
        nearest: Tensor = (solved**2).sum(0).view(len(features), len(self.means)).min(1).values
        return nearest


class GateLayer(NamedTuple):
    """A linear layer whose squared length is an image's distance from the training images over the limit.

    Attributes:
        weight: [D, F], float32.
        bias: [D], float32.
        measures: Whether there was anything to measure by; else all is 0, and nothing lies beyond the limit.
    """

    weight: Tensor
    bias: Tensor
    measures: bool


def directions(features: int) -> int:
    """Rows of the gate's layer for so many features."""
    return min(features, DIRECTIONS)


def gate_layer(train: Tensor, validation: Tensor, within: float) -> GateLayer:
    """Measure a site's training images, and take the limit from its validation images.

    The distance is to the mean of all training images: to the nearest class mean it told strangers no better, and the
    mean of a class of one image would be that image. The limit is the quantile below which a new image of the same
    kind lies with probability `within` (the order statistic ceil(within (m + 1)) of m distances, as in split conformal
    prediction). Where m is too small for that, fewer than 19 for 0.95, it is the largest, and about one in m + 1 of new
    ones lies beyond.

    Args:
        train: Features of the site's training images, [n, F].
        validation: Of its validation images, [m, F].
        within: Share of images like those of validation that lie within the limit.

    Returns:
        The layer; one of zeros where there is nothing to measure by: fewer than two training images, features that do
        not vary, or no validation images.

    Raises:
        DataError: A feature is not finite.
    """
    wide, rows = train.shape[1], directions(train.shape[1])
    drawn = projection(wide, rows, 0)  # at home only, so the seed is anybody's; a run's own would do as well
    turned = torch.eye(wide, dtype=torch.float64) if drawn is None else drawn
    middle = train.double().mean(0)
    # Centred before squares are summed: far from 0 their difference would have lost its digits.
    seen, shown = ((part.double() - middle) @ turned for part in (train, validation))
    nothing = GateLayer(torch.zeros(rows, wide), torch.zeros(rows), False)
    spread = float(seen.var(0, correction=0).mean().sqrt()) if len(seen) else 0.0
    if len(seen) < 2 or not len(shown) or spread <= 1e-6 * (1 + float(middle.abs().mean())):
        return nothing
    far = ClassDistance.of(Sums.of(seen, torch.ones(len(seen), 1), by_class=False))
    limit = limit_of(far(shown), within)
    if not (math.isfinite(limit) and limit > 0):
        return nothing
    scale = math.sqrt(limit * (1 + _SLACK))
    weight = torch.linalg.solve_triangular(far.factor, turned.T, upper=False) / scale
    return GateLayer(weight.float(), -(weight @ middle).float(), True)


def limit_of(distances: Tensor, within: float) -> float:
    """The distance within which a new image of the same kind lies with some probability; see `gate_layer`.

    Args:
        distances: Of images that had no part in the fit, [m], m 1 or more.
        within: The probability.
    """
    at = math.ceil(within * (len(distances) + 1)) - 1
    return float(distances.sort().values[min(at, len(distances) - 1)])
