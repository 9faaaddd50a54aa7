"""Losses of evidence: FedUAA's L_uce, and TWEU with it.

L_uce is the cross entropy expected under a Dirichlet, with a penalty on wrong evidence whose weight lambda grows, so
that a network learns before it is told to doubt. The objective of the temperature-warmed evidential uncertainty head
(TWEU) adds the cross entropy of the warmed belief.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from fedretina.errors import SettingsError
from fedretina.losses.objective import Clock, objective
from fedretina.settings.objective import EvidentialSettings, KlSchedule, TweuSettings
from fedretina.uncertainty.evidence import opinion


def _wide(values: Tensor) -> Tensor:
    """Widen half precision to float32: lgamma and digamma lose all their digits in bf16, a softmax most of them."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def ice_loss(alpha: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy expected under Dir(alpha): digamma(S) - digamma(alpha_y) (FedUAA Eq. 5).

    The log in the paper's integrand is of the simplex variable, not of the belief mass, as it is printed.

    Args:
        alpha: Dirichlet parameters [B, K], 1 or above.
        labels: int64 [B], 0 to K - 1.

    Returns:
        [B], in nats, above 0, float32 (float64 for float64 input). Without evidence it is sum_{j<K} 1/j.

    Raises:
        RuntimeError: A label lies outside the classes (from torch, on the CPU).
    """
    alpha = _wide(alpha)
    own = alpha.gather(1, labels[:, None]).squeeze(1)  # alpha_y
    return torch.digamma(alpha.sum(1)) - torch.digamma(own)


def kl_loss(alpha: Tensor, labels: Tensor) -> Tensor:
    """Divergence KL(Dir(alpha~) || Dir(1)) with alpha~ = y + (1 - y) alpha (FedUAA Eq. 6).

    The true class is set to 1 first, so only evidence for wrong classes costs. The paper prints a sum of
    Gammas in the denominator; the divergence has their product, and so has the official code.

    Args:
        alpha: Dirichlet parameters [B, K], 1 or above.
        labels: int64 [B], 0 to K - 1.

    Returns:
        [B], 0 or above up to rounding, exactly 0 without wrong evidence; float32 (float64 for float64 input).

    Raises:
        RuntimeError: A label lies outside the classes (from torch, on the CPU).
    """
    tilde = _wide(alpha).scatter(1, labels[:, None], 1.0)  # alpha~
    strength = tilde.sum(1)
    uniform = torch.lgamma(strength.new_full((), float(alpha.shape[1])))  # log Gamma(K)
    normaliser = torch.lgamma(strength) - uniform - torch.lgamma(tilde).sum(1)
    spread = torch.digamma(tilde) - torch.digamma(strength)[:, None]
    return normaliser + ((tilde - 1) * spread).sum(1)


def evidential_loss(alpha: Tensor, labels: Tensor, weight: float) -> Tensor:
    """L_uce = L_ice + lambda L_kl, a value per sample (FedUAA Eq. 7).

    Args:
        alpha: Dirichlet parameters [B, K], 1 or above.
        labels: int64 [B], 0 to K - 1.
        weight: lambda in [0, 1], see `kl_weight`.

    Returns:
        [B], in nats.
    """
    return ice_loss(alpha, labels) + weight * kl_loss(alpha, labels)


@objective(EvidentialSettings)
class EvidentialObjective:
    """Mean L_uce of the batch, the EU rows of the FedUAA ablation (Table 2).

    Args:
        settings: Schedule of lambda; its default is argued in `TweuSettings`.
    """

    evidential: bool = True

    def __init__(self, settings: EvidentialSettings | None = None) -> None:
        self._settings = settings or EvidentialSettings()

    def score(self, logits: Tensor, labels: Tensor, clock: Clock) -> Tensor:
        """See `Objective.score`.

        Raises:
            SettingsError: A count of the clock lies outside its total.
        """
        weight = kl_weight(clock, self._settings.kl_anneal)
        return evidential_loss(opinion(logits).alpha, labels, weight).mean()


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
    return -_wide(belief / tau).log_softmax(1).gather(1, labels[:, None]).squeeze(1)


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


_PAPER_ROUNDS = 100


def _check(name: str, position: int, total: int) -> None:
    if not 0 <= position < total:
        raise SettingsError(
            f"The clock shows {name} {position} of {total}: {name}s count from 0 and stay below their total. "
            f"Give the phase's total number of {name}s, not the number left."
        )


def _from_zero_to_one(position: int, total: int) -> float:
    return 1.0 if total == 1 else position / (total - 1)


def _linear_rounds(clock: Clock) -> float:
    _check("round", clock.round, clock.rounds)
    return _from_zero_to_one(clock.round, clock.rounds)


def _linear_steps(clock: Clock) -> float:
    _check("round", clock.round, clock.rounds)
    _check("epoch", clock.epoch, clock.epochs)
    _check("step", clock.step, clock.steps)
    done = (clock.round * clock.epochs + clock.epoch) * clock.steps + clock.step
    return _from_zero_to_one(done, clock.rounds * clock.epochs * clock.steps)


def _official(clock: Clock) -> float:
    _check("round", clock.round, clock.rounds)
    return (clock.round + 1) / (clock.rounds + 1)  # t / (T + 1), t = 1..T


def _paper_pace(clock: Clock) -> float:
    _check("round", clock.round, clock.rounds)
    return min(1.0, clock.round / (_PAPER_ROUNDS - 1))


SCHEDULES: Mapping[KlSchedule, Callable[[Clock], float]] = MappingProxyType(
    {"linear_rounds": _linear_rounds, "linear_steps": _linear_steps, "official": _official, "paper_pace": _paper_pace}
)


def kl_weight(clock: Clock, schedule: KlSchedule) -> float:
    """Weight of the KL term at this moment (lambda in FedUAA, Eq. 7).

    The paper (section 3) starts it at 0 and grows it to 1 "with the number of training iterations". With
    t = 1..T the round:

    * `linear_rounds`: (t - 1) / (T - 1), exactly 0 to exactly 1, constant within a round; 1 if T = 1.
    * `linear_steps`: the same line over all optimiser steps of the phase; 1 if there is a single step. Sites
      of different size then differ in lambda within a round, though not at its start.
    * `official`: t / (T + 1), the published code (t / 101 for its 100 rounds). It starts at 0.0099 and
      ends at 0.9901, so it reaches neither of the paper's two ends.
    * `paper_pace`: (t - 1) / 99 at most 1, whatever T is: a round weighs what it weighs in the paper's run of 100. A
      short run on the line of `linear_rounds` is told to doubt before it has learned.

    Args:
        clock: Where training stands within the phase.
        schedule: One of the names above.

    Returns:
        lambda in [0, 1].

    Raises:
        SettingsError: A count of the clock lies outside its total.
    """
    return SCHEDULES[schedule](clock)
