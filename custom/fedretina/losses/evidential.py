"""The evidential loss L_uce: cross entropy expected under a Dirichlet, and a penalty on wrong evidence."""

from __future__ import annotations

import torch
from torch import Tensor

from fedretina.losses.annealing import kl_weight
from fedretina.losses.objective import Clock, objective
from fedretina.settings.objective import EvidentialSettings
from fedretina.uncertainty.evidence import opinion


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
