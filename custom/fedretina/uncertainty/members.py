"""Estimators over an ensemble: several answers to an image become one, with an uncertainty."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from fedretina.errors import TrainingError
from fedretina.uncertainty.answer import Answer
from fedretina.uncertainty.evidence import opinion


def members(logits: Tensor) -> Tensor:
    """The answers of an ensemble in float64 on the CPU; one head alone is an ensemble of one.

    The members are early exits with the final head, passes of MC-dropout, or runs of a deep ensemble.

    Args:
        logits: [N, M, K], or [N, K].

    Returns:
        [N, M, K].

    Raises:
        TrainingError: The logits have another number of axes, no member, or fewer than two classes.
    """
    found = logits[:, None] if logits.ndim == 2 else logits
    if found.ndim != 3 or found.shape[1] < 1 or found.shape[2] < 2:
        raise TrainingError(
            f"An answer needs logits of shape [N, K] or [N, M, K] with at least 2 classes, but got "
            f"{list(logits.shape)}. Give the output of a classification head, or of several."
        )
    return found.detach().cpu().double()


class SoftmaxMeanEstimator:
    """Mean softmax of the members and its entropy divided by log K, in [0, 1] (FedEE, Eq. 2).

    The paper's entropy is in nats; the division lets sites with other numbers of grades be compared, and changes no
    order. Its code has the entropy of one sigmoid output where there are two classes, which is largest at p = 1/e;
    here both classes count.
    """

    def answer(self, logits: Tensor) -> Answer:
        """See `Estimator.answer`."""
        probabilities = members(logits).softmax(2).mean(1)
        entropy = torch.special.entr(probabilities).sum(1) / math.log(probabilities.shape[1])
        return _answer(probabilities, entropy.clamp(0, 1), "softmax_mean")


class DisagreementEstimator:
    """Mean softmax of the members; u is what they disagree on, over log K, in [0, 1].

    u = H(mean p_m) - mean H(p_m), the mutual information of answer and member (Houlsby et al., 2011; Smith and Gal, UAI
    2018). The entropy of the mean is this and what the members are each unsure of; images of a kind that they never saw
    may find each of them sure, and of different things. One member alone disagrees with nobody: u is 0.
    """

    def answer(self, logits: Tensor) -> Answer:
        """See `Estimator.answer`."""
        each = members(logits).softmax(2)
        probabilities = each.mean(1)
        shared = torch.special.entr(each).sum(2).mean(1)
        u = (torch.special.entr(probabilities).sum(1) - shared) / math.log(probabilities.shape[1])
        return _answer(probabilities, u.clamp(0, 1), "softmax_disagreement")


class EvidenceMeanEstimator:
    """Mean of the members' expected probabilities alpha / S, and of their u = K / S. Experimental: in no paper."""

    def answer(self, logits: Tensor) -> Answer:
        """See `Estimator.answer`."""
        views = [opinion(one) for one in members(logits).unbind(1)]
        probability = torch.stack([view.probability for view in views]).mean(0)
        return _answer(probability, torch.stack([view.uncertainty for view in views]).mean(0), "evidence_mean")


class DempsterEstimator:
    """Members fused by Dempster's rule, as TMC fuses views (Han et al., ICLR 2021, Eq. 7). Experimental here.

    Two opinions that leave out a share C of conflict give b = (b1 b2 + b1 u2 + b2 u1) / (1 - C) and
    u = u1 u2 / (1 - C): the order of members does not matter, and u shrinks with each. The rule takes them for
    independent witnesses, which exits of one network are not, so u is too small; only its order can be trusted.
    """

    def answer(self, logits: Tensor) -> Answer:
        """See `Estimator.answer`."""
        views = [opinion(one) for one in members(logits).unbind(1)]
        belief, u = reduce(_fused, [(view.belief, view.uncertainty) for view in views])
        return _answer(belief + u[:, None] / belief.shape[1], u, "evidence_dempster")


def _fused(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    (b1, u1), (b2, u2) = one, two
    both = b1 * b2 + b1 * u2[:, None] + b2 * u1[:, None]
    # 1 - C as the sum of what is left: the difference of two numbers near 1 would lose the digits of a small u.
    left = both.sum(1) + u1 * u2
    return both / left[:, None], u1 * u2 / left


def _answer(probabilities: Tensor, uncertainty: Tensor, name: str) -> Answer:
    u = np.asarray(uncertainty.numpy(), dtype=np.float64)
    return Answer(np.asarray(probabilities.numpy(), dtype=np.float64), u, name, (0.0, 1.0))
