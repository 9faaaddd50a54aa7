"""The interface between the local trainer and whatever a site minimises."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor, nn


class Clock(NamedTuple):
    """Where training stands within its phase. All counts start at 0.

    Attributes:
        round: Round of the phase, 0 to rounds - 1.
        rounds: Rounds of the phase: the total, never the number left.
        epoch: Local epoch of the round, 0 to epochs - 1.
        epochs: Local epochs of a round.
        step: Optimiser step of the epoch, 0 to steps - 1.
        steps: Optimiser steps of an epoch at this site.
    """

    round: int
    rounds: int
    epoch: int
    epochs: int
    step: int
    steps: int


class Batch(NamedTuple):
    """A mini-batch as the loader gives it.

    Attributes:
        images: float [B, 3, H, W] in [0, 1].
        labels: int64 [B], 0 to K - 1 in the site's own grading scheme.
    """

    images: Tensor
    labels: Tensor


class Objective(Protocol):
    """What a site minimises.

    Attributes:
        needs: Outputs that the network must offer, "logits" or "features"; checked when a row is built.
        evidential: Whether it reads logits as evidence, not as logs of probabilities.
    """

    needs: frozenset[str]
    evidential: bool

    def loss(self, net: nn.Module, batch: Batch, clock: Clock) -> tuple[Tensor, Tensor]:
        """Run the network on a batch and score its answer.

        Args:
            net: Network whose call on images [B, 3, H, W] gives logits [B, K].
            batch: The mini-batch, on the device of the network.
            clock: Where training stands; only annealed objectives read it.

        Returns:
            The mean loss of the batch (a scalar with gradient, float32) and the logits [B, K] of the same
            forward pass (with gradient; detach them before use in a statistic such as theta).
        """
        ...
