"""The objective of FedUAA's temperature-warmed evidential uncertainty head (TWEU)."""

from __future__ import annotations

from torch import Tensor

from fedretina.losses.cross_entropy import cross_entropy
from fedretina.losses.evidential import evidential_loss, kl_weight
from fedretina.losses.objective import Clock, objective
from fedretina.settings.objective import KlSchedule, TweuSettings
from fedretina.uncertainty.evidence import opinion

__all__ = ["KlSchedule", "TweuObjective", "TweuSettings", "kl_weight", "warmed_cross_entropy"]


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


@objective(TweuSettings)
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
