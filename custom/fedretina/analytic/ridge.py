"""Ridge heads: the federated one from sums alone, a site's own one from its images, and the choice of their strength.

Federated: W = (G + lambda I)^-1 B, with lambda where the marginal likelihood of Bayesian linear regression is largest
(MacKay, "Bayesian interpolation", 1992): one noise level and one prior for all classes, both read off the totals. Own:
lambda by the leave-one-out error in closed form (Allen's PRESS, 1974).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedretina.analytic.sums import Totals
from fedretina.errors import DataError

_GRID = torch.logspace(-3, 5, 33, dtype=torch.float64)
"""Strengths that are tried, for features of unit variance and any number of images."""


@dataclass(frozen=True)
class RidgeHead:
    """A linear head.

    Attributes:
        weight: [d, C], float64; the last feature is the constant.
        prior: [C]: added to the outputs, since labels were centred by it.
        strength: lambda.
    """

    weight: Tensor
    prior: Tensor
    strength: float

    def scores(self, features: Tensor) -> Tensor:
        """Outputs for features [n, d]: [n, C], near 0 to 1 on images like those of training, but not probabilities."""
        return features.double() @ self.weight + self.prior


def solve(totals: Totals, strength: float) -> RidgeHead:
    """The head of one strength.

    Raises:
        DataError: `strength` is not positive, or the sums are not those of real features (not positive definite).
    """
    if not strength > 0:
        raise DataError(f"the strength of a ridge head is above 0, got {strength!r}.")
    matrix = totals.gram + strength * torch.eye(len(totals.gram), dtype=torch.float64)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        raise DataError("the sums are not those of features: their second moments are not positive.")
    return RidgeHead(torch.cholesky_solve(totals.cross, factor), totals.prior, strength)


def log_evidence(totals: Totals) -> Callable[[Tensor], Tensor]:
    """Log marginal likelihood of the labels by strength, up to a constant; the noise level is the likeliest for each.

    With e_i the eigenvalues of G, c_i the squared length of u_i^T B, N images and C classes: the residual is
    E = |y|^2 - sum c_i / (e_i + lambda), and the likelihood
    N C / 2 log(N C / E) + C / 2 sum log(lambda / (e_i + lambda)).

    Args:
        totals: The sums of all; their eigenvalues are found once for all strengths that are asked.

    Returns:
        Takes lambda [k], above 0, and gives float64 [k].
    """
    values, vectors = torch.linalg.eigh(totals.gram)
    values = values.clamp(min=0.0)
    squared = ((vectors.T @ totals.cross) ** 2).sum(1)
    classes, data = totals.cross.shape[1], totals.images * totals.cross.shape[1]

    def evidence(strengths: Tensor) -> Tensor:
        spread = values.unsqueeze(0) + strengths.double().unsqueeze(1)
        residual = (totals.power - (squared / spread).sum(1)).clamp(min=1e-12 * max(totals.power, 1e-12))
        return -data / 2 * torch.log(residual) + classes / 2 * (
            torch.log(strengths.double()).unsqueeze(1) - torch.log(spread)
        ).sum(1)

    return evidence


def likeliest(totals: Totals) -> RidgeHead:
    """The head of the strength that makes the labels likeliest: the best of a grid, then refined about it.

    Where the labels are all of one class there is nothing to learn, and the strongest of the grid is taken.
    """
    from scipy.optimize import minimize_scalar  # takes half a second, and most runs fit nothing

    if totals.power <= 1e-9 * totals.images:
        return solve(totals, float(_GRID[-1]))
    evidence = log_evidence(totals)
    at = int(evidence(_GRID).argmax())
    low, high = (float(_GRID[index].log()) for index in (max(at - 1, 0), min(at + 1, len(_GRID) - 1)))
    found = minimize_scalar(
        lambda log: -float(evidence(torch.tensor([log], dtype=torch.float64).exp())),
        bounds=(low, high),
        method="bounded",
    )
    return solve(totals, float(torch.tensor(float(found.x), dtype=torch.float64).exp()))


def leave_one_out(features: Tensor, shares: Tensor, strengths: Tensor) -> Tensor:
    """What each image would be answered by a head that had not seen it, by strength, without solving anew.

    The residual of image i without itself is r_i / (1 - h_i - 1/n), with h the diagonal of the hat matrix of centred
    features; 1/n is the part of what centres features and labels, which is left out with the image. Without it images
    fewer than features would tell on each other: what is centred sums to 0, so the others' sum is the image left out,
    and the weakest head would seem the best. Work is done in the smaller of images and features.

    Args:
        features: [n, d], n 2 or more.
        shares: Labels, [n, C].
        strengths: [k], above 0.

    Returns:
        Scores, [k, n, C].
    """
    phi, labels = features.double(), shares.double()
    phi = phi - phi.mean(0)
    prior = labels.mean(0)
    target = labels - prior
    left, singular, _ = torch.linalg.svd(phi, full_matrices=False)  # phi phi^T = U s^2 U^T
    projected = left.T @ target
    found = []
    for strength in strengths.double():
        shrink = singular**2 / (singular**2 + strength)
        fitted = left @ (shrink.unsqueeze(1) * projected)
        leverage = ((left**2) @ shrink + 1 / len(phi)).clamp(max=1 - 1e-12).unsqueeze(1)
        found.append(target - (target - fitted) / (1 - leverage) + prior)
    return torch.stack(found)


def own_head(features: Tensor, shares: Tensor, totals: Totals) -> RidgeHead:
    """A site's head on its own images, of the strength whose squared leave-one-out error is least.

    Args:
        features: [n, d] of the site's training images.
        shares: Their labels, [n, C].
        totals: The same images' normal equations.
    """
    error = ((leave_one_out(features, shares, _GRID) - shares.double()) ** 2).sum((1, 2))
    return solve(totals, float(_GRID[int(error.argmin())]))
