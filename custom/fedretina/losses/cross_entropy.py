"""Cross entropy of the softmax, and its focal form."""

from __future__ import annotations

import torch
from torch import Tensor

from fedretina.errors import TrainingError
from fedretina.losses.objective import Clock, objective
from fedretina.seeds import brought
from fedretina.settings.objective import (
    CrossEntropySettings,
    FocalSettings,
)


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
        alpha = None if weights is None else brought(torch.tensor(weights), logits.device)
        return focal_loss(logits, labels, self._settings.gamma, alpha).mean()
