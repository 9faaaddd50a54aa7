"""Estimators: how logits become an answer with an uncertainty, and which scores an AUC is computed from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedretina.errors import SettingsError
from fedretina.settings.training import AucInput
from fedretina.uncertainty.answer import Answer
from fedretina.uncertainty.evidence import opinion
from fedretina.uncertainty.members import (
    DempsterEstimator,
    DisagreementEstimator,
    EvidenceMeanEstimator,
    SoftmaxMeanEstimator,
    members,
)


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


_OF_THE_FINAL_HEAD: Mapping[AucInput, Callable[[Tensor, float], Tensor]] = MappingProxyType(
    {
        "expected_probability": lambda logits, tau: opinion(logits).probability,
        "belief": lambda logits, tau: opinion(logits).belief,
        "logits_softmax": lambda logits, tau: logits.softmax(1),
        "warmed_belief": lambda logits, tau: (opinion(logits).belief / tau).softmax(1),
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
