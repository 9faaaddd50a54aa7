"""Estimators: how logits become an answer with an uncertainty, and which scores an AUC is computed from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedretina.errors import SettingsError, TrainingError
from fedretina.settings.training import AucInput
from fedretina.uncertainty.evidence import opinion

_OF_THE_FINAL_HEAD: Mapping[AucInput, Callable[[Tensor, float], Tensor]] = MappingProxyType(
    {
        "expected_probability": lambda logits, tau: opinion(logits).probability,
        "belief": lambda logits, tau: opinion(logits).belief,
        "logits_softmax": lambda logits, tau: logits.softmax(1),
        "warmed_belief": lambda logits, tau: (opinion(logits).belief / tau).softmax(1),
    }
)


class Answer(NamedTuple):
    """What a model says about N images.

    Attributes:
        probabilities: float64 [N, K]; a row sums to 1.
        uncertainty: float64 [N], within `range`; larger means less sure.
        name: Name of the estimator, as it stands in `ESTIMATORS`.
        range: Smallest and largest uncertainty that the estimator can give.
    """

    probabilities: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    name: str
    range: tuple[float, float]


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


class Estimator(Protocol):
    """Anything that turns the logits of one forward pass, or of an ensemble, into an answer."""

    def answer(self, logits: Tensor) -> Answer:
        """Turn logits [N, K], or [N, M, K] of M members with the final head last, into an answer.

        Raises:
            TrainingError: The logits have another shape, or fewer than two classes.
        """
        ...


def _final(logits: Tensor) -> Tensor:
    """The final head's logits in float64 on the CPU: rounding to float32 ties samples that the network ranked."""
    return members(logits)[:, -1]


def _array(values: Tensor) -> NDArray[np.float64]:
    return np.asarray(values.numpy(), dtype=np.float64)


class SoftmaxEstimator:
    """Softmax of the final head and its entropy divided by log K, in [0, 1]; 1 is a uniform answer."""

    def answer(self, logits: Tensor) -> Answer:
        """See `Estimator.answer`."""
        wide = _final(logits)
        probabilities = wide.softmax(1)
        entropy = torch.special.entr(probabilities).sum(1) / math.log(wide.shape[1])
        return Answer(_array(probabilities), _array(entropy.clamp(0, 1)), "softmax", (0.0, 1.0))


class EvidenceEstimator:
    """Expected probability alpha / S and u = K / S of the final head (FedUAA), u in (0, 1]; tau is not used."""

    def answer(self, logits: Tensor) -> Answer:
        """See `Estimator.answer`."""
        view = opinion(_final(logits))
        return Answer(_array(view.probability), _array(view.uncertainty), "evidence", (0.0, 1.0))


ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
        "softmax": SoftmaxEstimator(),
        "evidence": EvidenceEstimator(),
        "softmax_mean": SoftmaxMeanEstimator(),
        "softmax_disagreement": DisagreementEstimator(),
        "evidence_mean": EvidenceMeanEstimator(),
        "evidence_dempster": DempsterEstimator(),
    }
)


def auc_scores(logits: Tensor, which: AucInput, tau: float, estimator: Estimator) -> NDArray[np.float64]:
    """Class scores from which a one-vs-rest AUC is computed.

    The four that read one head have the same largest class, but they rank samples differently, so their AUCs differ
    and a report must name its choice. The official FedUAA code uses "logits_softmax" though the paper speaks of
    belief; "expected_probability" is what our models answer, hence the product's default. Ensembles rank by "answer".

    Args:
        logits: [N, K], or [N, M, K], of which all choices but "answer" read the final head.
        which: "expected_probability" (alpha / S), "belief" (e / S), "logits_softmax" (softmax of the raw logits),
            "warmed_belief" (softmax of belief / tau) or "answer" (the estimator's probabilities).
        tau: Temperature of the warmed belief, above 0; the other choices do not read it.
        estimator: Read by "answer" alone.

    Returns:
        float64 [N, K].

    Raises:
        SettingsError: tau is not a finite number above 0.
        TrainingError: The logits have another shape, or fewer than two classes.
    """
    if not (math.isfinite(tau) and tau > 0):
        raise SettingsError(f"tau is {tau}; it divides the belief and must be a finite number above 0.")
    if which == "answer":
        return estimator.answer(logits).probabilities
    return _array(_OF_THE_FINAL_HEAD[which](_final(logits), tau))
