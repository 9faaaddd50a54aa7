"""From an encoder's features to what is summed, and from a head on that back to one on the encoder."""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedretina.analytic.ridge import RidgeHead


class LinearHead(NamedTuple):
    """A linear layer on an encoder's features.

    Attributes:
        weight: [K, F], float32.
        bias: [K], float32.
    """

    weight: Tensor
    bias: Tensor


class FeatureMap(NamedTuple):
    """phi(x) = (P^T (x - mean) / scale, 1): an affine map, so a head on phi is one on x (`folded`).

    Attributes:
        mean: [F], float64.
        scale: Above 0.
        projection: P, [F, d - 1], float64; None takes the features as they are.
        longest: Length that phi without its constant is cut to while sums are formed; None cuts nothing.
    """

    mean: Tensor
    scale: float
    projection: Tensor | None
    longest: float | None = None

    @classmethod
    def of_site(cls, features: Tensor, width: int, seed: int) -> FeatureMap:
        """Centre by a site's own mean, the frozen twin of a BatchNorm that stays at home, and scale by one number.

        The number makes the features' mean variance 1. A deviation for each feature would be the closer twin, but of
        features that are nearly always 0 a site's few images do not tell it: the division blew them up, and at 60
        images a site of the four real fundus sites macro AUC fell from .731 to .658 (federated), from .691 to .641
        (own).

        Args:
            features: [n, F] of the site's training images.
            width: d, the constant included.
            seed: Of the projection.
        """
        wide = features.double()
        scale = float(wide.var(0, correction=0).mean().sqrt())
        # Images that are all the same leave nothing but rounding.
        scale = scale if scale > 1e-6 * (1 + float(wide.abs().mean())) else 1.0
        return cls(wide.mean(0), scale, projection(features.shape[1], width - 1, seed))

    @classmethod
    def bounded(cls, features: int, width: int, seed: int, bound: float) -> FeatureMap:
        """One that no image of the site's has a part in, for sums under noise.

        Vectors of length `bound` become as long as centred and scaled ones are, and longer ones are cut to that.

        Args:
            features: F.
            width: d, the constant included.
            seed: Of the projection.
            bound: Longest vector of projected features.
        """
        longest = math.sqrt(width - 1)
        nothing = torch.zeros(features, dtype=torch.float64)
        return cls(nothing, bound / longest, projection(features, width - 1, seed), longest)

    def __call__(self, features: Tensor, cut: bool = False) -> Tensor:
        """Phi of features [n, F]: [n, d], float64, the constant last.

        Args:
            features: Of images.
            cut: Whether vectors are cut to `longest`: while sums are formed, and never to answer.
        """
        phi = (features.double() - self.mean) / self.scale
        if self.projection is not None:
            phi = phi @ self.projection
        if cut and self.longest is not None:
            phi = phi * (self.longest / phi.norm(dim=1, keepdim=True).clamp(min=self.longest))
        return torch.cat([phi, torch.ones(len(phi), 1, dtype=torch.float64)], dim=1)

    def folded(self, head: RidgeHead) -> LinearHead:
        """The head on the encoder's own features that gives the same scores."""
        inner, constant = head.weight[:-1], head.weight[-1]
        weight = (inner if self.projection is None else self.projection @ inner) / self.scale
        bias = constant + head.prior - self.mean @ weight
        return LinearHead(weight.T.float().contiguous(), bias.float())


def projection(features: int, width: int, seed: int) -> Tensor | None:
    """A random projection of entries +1 and -1 over sqrt(F) (Achlioptas, "Database-friendly random projections", 2003).

    All ends must draw the same one, also with other versions of NumPy: the signs are bits of SHAKE-256 of the seed.

    Args:
        features: F.
        width: To how many.
        seed: The run's, 0 or more.

    Returns:
        [F, width], float64; None where there are not more features than that.
    """
    if width >= features:
        return None
    wanted = features * width
    stream = hashlib.shake_256(f"fedretina projection {features} {width} {seed}".encode()).digest((wanted + 7) // 8)
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8))[:wanted].astype(np.float64)
    return torch.from_numpy((2 * bits - 1).reshape(features, width)) / math.sqrt(features)
