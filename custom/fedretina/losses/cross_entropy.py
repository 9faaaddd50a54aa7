"""Cross entropy of the softmax, the objective of the methods without evidence."""

from __future__ import annotations

import torch
from torch import Tensor

from fedretina.losses.objective import Clock, objective
from fedretina.settings.objective import CrossEntropySettings


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
