"""The objective of FedUAA's temperature-warmed evidential uncertainty head (TWEU)."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, field_validator
from torch import Tensor

from fedretina.errors import SettingsError
from fedretina.losses.annealing import KlSchedule, kl_weight
from fedretina.losses.cross_entropy import cross_entropy
from fedretina.losses.evidential import evidential_loss
from fedretina.losses.objective import Clock
from fedretina.uncertainty.evidence import opinion

__all__ = ["KlSchedule", "TweuObjective", "TweuSettings", "kl_weight", "warmed_cross_entropy"]


class TweuSettings(BaseModel):
    """Settings of the TWEU objective, each with the reason for its default.

    Attributes:
        tau: Temperature of the warmed belief, above 0. 0.05: the paper (section 4) and the official code
            (hard-coded) agree. Belief lies in [0, 1), so the warmed logits span 0 to 20. The same authors'
            UIOS code anneals tau; FedUAA does not, and neither do we.
        kl_anneal: Schedule of lambda, see `kl_weight`. "linear_rounds": the paper grows lambda from 0 to 1
            "with the number of training iterations", the official code steps it once a round as t / (T + 1)
            and reaches neither end. We step once a round like the code, so that all sites of a round minimise
            the same function whatever their size, and keep the paper's two ends. "official" repeats the code.
            "paper_pace" suits runs that are far shorter than the paper's.
        warmed_weight: Weight of L_tce, 0 or above. 1.0: the sum of Eq. 4 and of the official code. 0 gives
            the plain evidential objective.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tau: float = 0.05
    kl_anneal: KlSchedule = "linear_rounds"
    warmed_weight: float = 1.0

    @field_validator("tau")
    @classmethod
    def _tau_above_zero(cls, tau: float) -> float:
        if not (math.isfinite(tau) and tau > 0):
            raise SettingsError(
                f"tau is {tau}; it divides the belief and must be a finite number above 0. The paper uses 0.05."
            )
        return tau

    @field_validator("warmed_weight")
    @classmethod
    def _weight_not_negative(cls, weight: float) -> float:
        if not (math.isfinite(weight) and weight >= 0):
            raise SettingsError(f"warmed_weight is {weight}; it must be a finite number, 0 or above. The paper uses 1.")
        return weight


def warmed_cross_entropy(belief: Tensor, labels: Tensor, tau: float) -> Tensor:
    """Cross entropy of the warmed belief b_T = softmax(b / tau), L_tce (FedUAA Eq. 8 and section 2.1).

    Args:
        belief: Belief masses [B, K] in [0, 1).
        labels: int64 [B], 0 to K - 1.
        tau: Temperature, above 0.

    Returns:
        [B], in nats, within [0, log(K - 1 + e^(1/tau))], float32 (float64 for float64 input).

    Raises:
        RuntimeError: A label lies outside the classes (from torch, on the CPU).
    """
    return cross_entropy(belief / tau, labels)


class TweuObjective:
    """Mean of L = L_ice + lambda L_kl + L_tce over the batch (FedUAA Eq. 4 and 7).

    Args:
        settings: Temperature, schedule of lambda and weight of L_tce.
    """

    evidential: bool = True

    def __init__(self, settings: TweuSettings) -> None:
        self._settings = settings

    def score(self, logits: Tensor, labels: Tensor, clock: Clock) -> Tensor:
        """See `Objective.score`.

        Raises:
            SettingsError: A count of the clock lies outside its total.
        """
        weight = kl_weight(clock, self._settings.kl_anneal)
        view = opinion(logits)
        evidential = evidential_loss(view.alpha, labels, weight)  # L_uce
        warmed = warmed_cross_entropy(view.belief, labels, self._settings.tau)  # L_tce
        return (evidential + self._settings.warmed_weight * warmed).mean()
