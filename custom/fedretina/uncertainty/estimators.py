"""Estimators: how logits become an answer with an uncertainty, and which scores an AUC is computed from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from fedretina.errors import SettingsError, TrainingError
from fedretina.parts import Register
from fedretina.settings.choice import Choice
from fedretina.settings.evaluation import (
    EvaluationSettings,
    EvidenceDempsterSettings,
    EvidenceMeanSettings,
    EvidenceSettings,
    SoftmaxDisagreementSettings,
    SoftmaxGatedSettings,
    SoftmaxMeanSettings,
    SoftmaxSettings,
)
from fedretina.settings.faults import settings_faults
from fedretina.uncertainty.evidence import opinion

_OF_THE_FINAL_HEAD: Mapping[str, Callable[[Tensor, float], Tensor]] = MappingProxyType(
    {
        "expected_probability": lambda logits, tau: opinion(logits).probability,
        "belief": lambda logits, tau: opinion(logits).belief,
        "logits_softmax": lambda logits, tau: logits.softmax(1),
        "warmed_belief": lambda logits, tau: (opinion(logits).belief / tau).softmax(1),
    }
)
_ANSWER = "answer"


class Prediction(NamedTuple):
    """What a model says about N images.

    Attributes:
        probabilities: float64 [N, K]; a row sums to 1.
        uncertainty: float64 [N], within `range`; larger means less sure.
        name: Name of the estimator, as settings choose it.
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


class Estimator(ABC):
    """Turns the logits of one forward pass, or of an ensemble, into an answer; it has no state of its own.

    Args:
        settings: Its own; what their class says of members and range holds for it.
    """

    def __init__(self, settings: Any) -> None:
        self.settings: EvaluationSettings = settings

    @abstractmethod
    def answer(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Turn the members' logits into probabilities and an uncertainty.

        Args:
            logits: float64 [N, M, K] on the CPU, the final head last; M is at most what the settings read.

        Returns:
            Probabilities [N, K], of which a row sums to 1, and the uncertainty [N] within the settings' range.
        """

    def predict(self, logits: Tensor) -> Prediction:
        """Turn logits [N, K], or [N, M, K] of M members with the final head last, into an answer.

        Raises:
            TrainingError: The logits have another shape, or fewer than two classes.
        """
        wide = members(logits)
        most = self.settings.most_members
        probabilities, u = self.answer(wide if most is None else wide[:, -most:])
        return Prediction(_array(probabilities), _array(u), self.settings.estimator, self.settings.range)


def _does_what_its_settings_say(settings: type[Choice], part: type[Estimator]) -> None:
    # Checks of a run and theta, which is a threshold of u, know the settings alone.
    low, high = getattr(settings, "range", (0.0, 1.0))
    if not 0 <= low < high <= 1:
        raise SettingsError(
            f"the range of {settings.__name__} is {low} to {high}, but theta is looked for from 0 to 1: let "
            f"{part.__name__} give an uncertainty within 0 to 1."
        )
    ranked = get_args(settings.model_fields["auc_input"].annotation)
    strange = [name for name in ranked if name != _ANSWER and name not in _OF_THE_FINAL_HEAD]
    if strange or not ranked:
        raise SettingsError(
            f"auc_input of {settings.__name__} may be {', '.join(ranked) or 'anything'}: name some of "
            f"{', '.join([*_OF_THE_FINAL_HEAD, _ANSWER])} as a Literal."
        )


estimator: Register[type[Estimator]] = Register("fedretina.uncertainty.estimators", _does_what_its_settings_say)
"""Registers the class below it as the estimator of some settings, which are its one argument."""


def build_estimator(settings: EvaluationSettings | str) -> Estimator:
    """Build the estimator that settings choose; one instance serves any number of answers.

    Args:
        settings: An experiment's `evaluation`, or the name of an estimator.

    Raises:
        SettingsError: There is no estimator of that name.
    """
    if isinstance(settings, str):
        try:
            settings = EvaluationSettings.of(settings)
        except ValidationError as error:
            raise SettingsError(f"{settings_faults(error, 'evaluation', EvaluationSettings)}.") from error
    return estimator.of(settings)(settings)


@estimator(SoftmaxMeanSettings)
class SoftmaxMeanEstimator(Estimator):
    """Mean softmax of the members and its entropy divided by log K, in [0, 1] (FedEE, Eq. 2).

    The paper's entropy is in nats; the division lets sites with other numbers of grades be compared, and changes no
    order. Its code has the entropy of one sigmoid output where there are two classes, which is largest at p = 1/e;
    here both classes count.
    """

    def answer(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See `Estimator.answer`."""
        probabilities = logits.softmax(2).mean(1)
        entropy = torch.special.entr(probabilities).sum(1) / math.log(probabilities.shape[1])
        return probabilities, entropy.clamp(0, 1)


@estimator(SoftmaxDisagreementSettings)
class DisagreementEstimator(Estimator):
    """Mean softmax of the members; u is what they disagree on, over log K, in [0, 1].

    u = H(mean p_m) - mean H(p_m), the mutual information of answer and member (Houlsby et al., 2011; Smith and Gal, UAI
    2018). The entropy of the mean is this and what the members are each unsure of; images of a kind that they never saw
    may find each of them sure, and of different things. One member alone disagrees with nobody: u is 0.
    """

    def answer(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See `Estimator.answer`."""
        each = logits.softmax(2)
        probabilities = each.mean(1)
        shared = torch.special.entr(each).sum(2).mean(1)
        u = (torch.special.entr(probabilities).sum(1) - shared) / math.log(probabilities.shape[1])
        return probabilities, u.clamp(0, 1)


@estimator(EvidenceMeanSettings)
class EvidenceMeanEstimator(Estimator):
    """Mean of the members' expected probabilities alpha / S, and of their u = K / S. Experimental: in no paper."""

    def answer(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See `Estimator.answer`."""
        views = [opinion(one) for one in logits.unbind(1)]
        probability = torch.stack([view.probability for view in views]).mean(0)
        return probability, torch.stack([view.uncertainty for view in views]).mean(0)


@estimator(EvidenceDempsterSettings)
class DempsterEstimator(Estimator):
    """Members fused by Dempster's rule, as TMC fuses views (Han et al., ICLR 2021, Eq. 7). Experimental here.

    Two opinions that leave out a share C of conflict give b = (b1 b2 + b1 u2 + b2 u1) / (1 - C) and
    u = u1 u2 / (1 - C): the order of members does not matter, and u shrinks with each. The rule takes them for
    independent witnesses, which exits of one network are not, so u is too small; only its order can be trusted.
    """

    def answer(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See `Estimator.answer`."""
        views = [opinion(one) for one in logits.unbind(1)]
        belief, u = reduce(_fused, [(view.belief, view.uncertainty) for view in views])
        return belief + u[:, None] / belief.shape[1], u


def _fused(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    (b1, u1), (b2, u2) = one, two
    both = b1 * b2 + b1 * u2[:, None] + b2 * u1[:, None]
    # 1 - C as the sum of what is left: the difference of two numbers near 1 would lose the digits of a small u.
    left = both.sum(1) + u1 * u2
    return both / left[:, None], u1 * u2 / left


def _array(values: Tensor) -> NDArray[np.float64]:
    return np.asarray(values.numpy(), dtype=np.float64)


@estimator(SoftmaxSettings)
class SoftmaxEstimator(Estimator):
    """Softmax of the final head and its entropy divided by log K, in [0, 1]; 1 is a uniform answer."""

    def answer(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See `Estimator.answer`."""
        probabilities = logits[:, -1].softmax(1)
        entropy = torch.special.entr(probabilities).sum(1) / math.log(probabilities.shape[1])
        return probabilities, entropy.clamp(0, 1)


@estimator(SoftmaxGatedSettings)
class GatedEstimator(Estimator):
    """Softmax of the final head; u is 1 - max p, in [0, 1), and 1 for an image beyond the gate.

    The members are what `networks.gate.Gate` gives, an image's distance over the site's limit, and the head's logits.
    1 - max p finds wrong answers and knows no stranger; the distance knows strangers and finds no wrong answers
    (docs/doubt.md). So the gate decides first, and no threshold, which is 1 at most, lets through what is beyond it.
    """

    def answer(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See `Estimator.answer`; logits alone come from a head without a gate, and none lies beyond it."""
        probabilities = logits[:, -1].softmax(1)
        doubt = 1 - probabilities.amax(1)
        far = logits[:, 0, 0] if logits.shape[1] > 1 else torch.zeros_like(doubt)
        # A distance that is no number is not within the limit.
        return probabilities, torch.where(far <= 1, doubt, torch.ones_like(doubt)).clamp(0, 1)


@estimator(EvidenceSettings)
class EvidenceEstimator(Estimator):
    """Expected probability alpha / S and u = K / S of the final head (FedUAA), u in (0, 1]; tau is not used."""

    def answer(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See `Estimator.answer`."""
        view = opinion(logits[:, -1])
        return view.probability, view.uncertainty


def auc_scores(logits: Tensor, which: str, tau: float, estimator: Estimator) -> NDArray[np.float64]:
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
        SettingsError: tau is not a finite number above 0, or there are no such scores.
        TrainingError: The logits have another shape, or fewer than two classes.
    """
    if not (math.isfinite(tau) and tau > 0):
        raise SettingsError(f"tau is {tau}; it divides the belief and must be a finite number above 0.")
    if which == _ANSWER:
        return estimator.predict(logits).probabilities
    if which not in _OF_THE_FINAL_HEAD:
        raise SettingsError(f"auc_input is {which!r}: use one of {', '.join([*_OF_THE_FINAL_HEAD, _ANSWER])}.")
    # In float64: rounding to float32 ties samples that the network ranked.
    return _array(_OF_THE_FINAL_HEAD[which](members(logits)[:, -1], tau))
