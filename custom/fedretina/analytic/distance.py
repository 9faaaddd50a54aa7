"""How far an image lies from all that the heads were fitted on: a gate for out-of-distribution images.

Mahalanobis distance to the nearest class mean under the pooled covariance (Lee et al., "A Simple Unified Framework for
Detecting Out-of-Distribution Samples", NeurIPS 2018), computed from sums alone. No head's own doubt knows an image of
another kind; on frozen features this distance does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedretina.analytic.sums import Sums
from fedretina.errors import DataError


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
    def of(cls, sums: Sums, shrink: float = 0.3) -> ClassDistance:
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
