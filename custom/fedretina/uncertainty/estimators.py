"""Estimators: how logits become an answer with an uncertainty, and which scores an AUC is computed from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedretina.errors import SettingsError, TrainingError
from fedretina.uncertainty.evidence import opinion

AucInput = Literal["expected_probability", "belief", "logits_softmax", "warmed_belief"]


class Answer(NamedTuple):
    """What a model says about N images, whichever estimator was asked.

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


class Estimator(Protocol):
    """Anything that turns the logits of one forward pass into an answer."""

    def answer(self, logits: Tensor) -> Answer:
        """Turn logits [N, K] into an answer.

        Raises:
            TrainingError: The logits are not a matrix with at least two classes.
        """
        ...


def _wide(logits: Tensor) -> Tensor:
    """Detach and widen to float64 on the CPU: rounding to float32 ties samples that the network ranked."""
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise TrainingError(
            f"An answer needs logits of shape [N, K] with at least 2 classes, but got {list(logits.shape)}. "
            "Give the output of a classification head."
        )
    return logits.detach().cpu().double()


def _array(values: Tensor) -> NDArray[np.float64]:
    return np.asarray(values.numpy(), dtype=np.float64)


class SoftmaxEstimator:
    """Softmax probabilities and their entropy divided by log K, in [0, 1]; 1 is a uniform answer."""

    def answer(self, logits: Tensor) -> Answer:
        """See `Estimator.answer`."""
        wide = _wide(logits)
        probabilities = wide.softmax(1)
        entropy = torch.special.entr(probabilities).sum(1) / math.log(wide.shape[1])
        return Answer(_array(probabilities), _array(entropy.clamp(0, 1)), "softmax", (0.0, 1.0))


class EvidenceEstimator:
    """Expected probability alpha / S and the uncertainty u = K / S of FedUAA, in (0, 1]; tau is not used."""

    def answer(self, logits: Tensor) -> Answer:
        """See `Estimator.answer`."""
        view = opinion(_wide(logits))
        return Answer(_array(view.probability), _array(view.uncertainty), "evidence", (0.0, 1.0))


ESTIMATORS: Mapping[str, Estimator] = MappingProxyType({"softmax": SoftmaxEstimator(), "evidence": EvidenceEstimator()})

_AUC_SCORES: Mapping[AucInput, Callable[[Tensor, float], Tensor]] = MappingProxyType(
    {
        "expected_probability": lambda logits, tau: opinion(logits).probability,
        "belief": lambda logits, tau: opinion(logits).belief,
        "logits_softmax": lambda logits, tau: logits.softmax(1),
        "warmed_belief": lambda logits, tau: (opinion(logits).belief / tau).softmax(1),
    }
)


def auc_scores(logits: Tensor, which: AucInput, tau: float) -> NDArray[np.float64]:
    """Class scores from which a one-vs-rest AUC is computed.

    All four choices have the same largest class, but they rank samples differently, so their AUCs differ
    and a report must name its choice. The official FedUAA code uses "logits_softmax" though the paper
    speaks of belief; "expected_probability" is what our models answer, hence the product's default.

    Args:
        logits: [N, K].
        which: "expected_probability" (alpha / S), "belief" (e / S), "logits_softmax" (softmax of the raw
            logits) or "warmed_belief" (softmax of belief / tau).
        tau: Temperature of the warmed belief, above 0; the other choices do not read it.

    Returns:
        float64 [N, K].

    Raises:
        SettingsError: tau is not a finite number above 0.
        TrainingError: The logits are not a matrix with at least two classes.
    """
    if not (math.isfinite(tau) and tau > 0):
        raise SettingsError(f"tau is {tau}; it divides the belief and must be a finite number above 0.")
    return _array(_AUC_SCORES[which](_wide(logits), tau))
