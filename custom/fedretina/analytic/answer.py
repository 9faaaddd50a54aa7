"""From shared classes to a site's own grades, and from scores to the logits of an ordinary head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedretina.analytic.features import LinearHead
from fedretina.analytic.ridge import RidgeHead
from fedretina.errors import DataError

_LEAST, _MOST = 0.1, 100.0  # of the scale: ridge scores lie near 0 to 1, and a logit of 100 is as sure as can be


def class_shares(
    labels: Tensor, cover: Sequence[Sequence[int]], classes: int, weights: Sequence[float] | None = None
) -> Tensor:
    """How much of each shared class an image stands for.

    A grade that stands for several classes is shared out by weights that the job names, or alike. The federation's own
    counts would be better weights, and a second message could bring them; in one message they could only be applied if
    each site's merged grades were summed apart, and a sum that one site alone has is not hidden by any total.

    Args:
        labels: Grades of images, [n].
        cover: For each grade the classes that it stands for (`GradingScheme.cover`); none outside of them.
        classes: C.
        weights: How common each class is, [C], up to a factor; alike where None.

    Returns:
        [n, C], float64; rows sum to 1, those of grades outside the classes to 0.
    """
    table = torch.zeros(len(cover), classes, dtype=torch.float64)
    for grade, members in enumerate(cover):
        for member in members:
            table[grade, member] = 1.0 if weights is None else weights[member]
    sums = table.sum(1, keepdim=True)
    return (table / sums.where(sums > 0, torch.ones_like(sums)))[labels]


def in_grades(head: RidgeHead, cover: Sequence[Sequence[int]], own: RidgeHead) -> RidgeHead:
    """A head over shared classes as one over a site's grades: a grade's score is the sum of its classes' scores.

    Args:
        head: Of C classes.
        cover: For each grade the classes that it stands for.
        own: The site's own head; a grade outside the classes has its score.
    """
    weights, priors = [], []
    for grade, members in enumerate(cover):
        chosen = list(members)
        weights.append(head.weight[:, chosen].sum(1) if chosen else own.weight[:, grade])
        priors.append(head.prior[chosen].sum() if chosen else own.prior[grade])
    return RidgeHead(torch.stack(weights, 1), torch.stack(priors), head.strength)


def mean_of(one: RidgeHead, other: RidgeHead) -> RidgeHead:
    """The head whose scores are the mean of two heads' over the same grades."""
    return RidgeHead((one.weight + other.weight) / 2, (one.prior + other.prior) / 2, one.strength)


class Scaling(NamedTuple):
    """Scores to logits, z_k = scale s_k + shift_k (Platt's, for several classes).

    Attributes:
        scale: One for all grades, so that it changes no order of the scores of a grade.
        shift: [K]; sums to 0.
        loss: Negative log likelihood of the labels that it was fitted on, in nats an image.
    """

    scale: float
    shift: Tensor
    loss: float

    @classmethod
    def fitted(cls, scores: Tensor, labels: Tensor) -> Scaling:
        """The likeliest for some images; a standard normal prior holds the shifts to 0, so few images move them little.

        Args:
            scores: [n, K].
            labels: [n].

        Raises:
            DataError: There are no images, or scores are not finite.
        """
        from scipy.optimize import minimize  # takes half a second, and most runs fit nothing

        if not len(labels) or not bool(torch.isfinite(scores).all()):
            raise DataError("scores cannot be made into probabilities without images, or where they are not finite.")
        s = scores.double().numpy()
        truth = labels.numpy()
        rows, n, grades = np.arange(len(truth)), len(truth), s.shape[1]

        def loss(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            scale, shift = np.exp(at[0]), at[1:]
            logits = scale * s + shift
            shifted = logits - logits.max(1, keepdims=True)
            log_sum = np.log(np.exp(shifted).sum(1))
            apart = np.exp(shifted - log_sum[:, None])
            apart[rows, truth] -= 1
            value = float((log_sum - shifted[rows, truth]).sum() + 0.5 * (shift**2).sum())
            slope = np.concatenate([[scale * (apart * s).sum()], apart.sum(0) + shift])
            return value, slope

        bounds = [(float(np.log(_LEAST)), float(np.log(_MOST))), *[(-10.0, 10.0)] * grades]
        begin = np.concatenate([[np.log(5.0)], np.zeros(grades)])
        found = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500}).x
        shift = found[1:] - found[1:].mean()
        likelihood = loss(np.concatenate([found[:1], shift]))[0] - 0.5 * float((shift**2).sum())
        return cls(float(np.exp(found[0])), torch.from_numpy(shift), likelihood / n)

    def on(self, head: LinearHead) -> LinearHead:
        """The head whose outputs are logits."""
        return LinearHead(head.weight * self.scale, head.bias * self.scale + self.shift.float())
