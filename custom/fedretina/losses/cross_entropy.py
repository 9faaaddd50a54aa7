"""Cross entropies: of the softmax, its focal form, and those of evidence, FedUAA's L_uce and TWEU.

L_uce is the cross entropy expected under a Dirichlet, with a penalty on wrong evidence whose weight lambda grows, so
that a network learns before it is told to doubt. The objective of the temperature-warmed evidential uncertainty head
(TWEU) adds the cross entropy of the warmed belief.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from fedretina.errors import SettingsError, TrainingError
from fedretina.losses.objective import Clock, objective
from fedretina.settings.objective import (
    CrossEntropySettings,
    EvidentialSettings,
    FocalSettings,
    KlSchedule,
    TweuSettings,
)
from fedretina.uncertainty.evidence import opinion


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of softmax(logits), a value per sample.

    Unlike `torch.nn.functional.cross_entropy` no label is ever ignored: the default there drops label -100
    in silence, here a label outside the classes is an error.

    Args:
        logits: [B, K]; computed in float32 (float64 stays float64) whatever autocast is active.
        labels: int64 [B], 0 to K - 1.

    Returns:
        [B], in nats, 0 or above.

    Raises:
        RuntimeError: A label lies outside the classes (from torch, on the CPU).
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return -wide.log_softmax(1).gather(1, labels[:, None]).squeeze(1)


@objective(CrossEntropySettings)
class CrossEntropyObjective:
    """Mean cross entropy of the batch, the BC (backbone) rows of the FedUAA ablation (Table 2)."""

    evidential: bool = False

    def __init__(self, settings: CrossEntropySettings | None = None) -> None:
        pass

    def score(self, logits: Tensor, labels: Tensor, clock: Clock) -> Tensor:
        """See `Objective.score`; the clock is not read."""
        return cross_entropy(logits, labels).mean()


def focal_loss(logits: Tensor, labels: Tensor, gamma: float, alpha: Tensor | None = None) -> Tensor:
    """Focal loss -alpha_y (1 - p_y)^gamma log p_y of p = softmax(logits), a value per sample.

    Source: Lin et al., ICCV 2017, Eq. 5, over classes as FLamby writes it.

    Args:
        logits: [B, K]; computed in float32 (float64 stays float64) whatever autocast is active.
        labels: int64 [B], 0 to K - 1.
        gamma: 0 or above.
        alpha: [K], above 0; None for 1 each.

    Returns:
        [B], in nats, 0 or above.

    Raises:
        RuntimeError: A label lies outside the classes (from torch, on the CPU).
    """
    entropy = cross_entropy(logits, labels)
    # 1 - p_y from log p_y without cancellation; its power's slope is infinite at 0 where gamma is below 1.
    doubt = -torch.expm1(-entropy)
    modulated = entropy if gamma == 0 else doubt.clamp_min(torch.finfo(doubt.dtype).tiny) ** gamma * entropy
    return modulated if alpha is None else alpha.to(modulated).gather(0, labels) * modulated


@objective(FocalSettings)
class FocalObjective:
    """Mean focal loss of the batch, what FLamby and FedEE minimise on dermoscopy.

    The mean is over images, as in FLamby, and not over weights: a batch of rare classes counts more than another.

    Args:
        settings: gamma and the classes' weights.
    """

    evidential: bool = False

    def __init__(self, settings: FocalSettings | None = None) -> None:
        self._settings = settings or FocalSettings()

    def score(self, logits: Tensor, labels: Tensor, clock: Clock) -> Tensor:
        """See `Objective.score`; the clock is not read.

        Raises:
            TrainingError: There are not as many weights as classes.
        """
        weights = self._settings.alpha
        if weights is not None and len(weights) != logits.shape[1]:
            raise TrainingError(
                f"objective.alpha has {len(weights)} weights, but there are {logits.shape[1]} grades: give one "
                "each, or leave it out."
            )
        alpha = None if weights is None else torch.tensor(weights, device=logits.device)
        return focal_loss(logits, labels, self._settings.gamma, alpha).mean()


def _wide(alpha: Tensor) -> Tensor:
    """Widen half precision to float32: lgamma and digamma lose all their digits in bf16."""
    return alpha.to(torch.promote_types(alpha.dtype, torch.float32))


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
    uniform = torch.lgamma(strength.new_tensor(float(alpha.shape[1])))  # log Gamma(K)
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
