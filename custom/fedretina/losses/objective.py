"""The interface between the local trainer and whatever a site minimises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedretina.parts import Register
from fedretina.settings.objective import ObjectiveSettings


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


class Objective(Protocol):
    """What a site minimises.

    Attributes:
        evidential: Whether it reads logits as evidence, not as logs of probabilities.
    """

    evidential: bool

    def score(self, logits: Tensor, labels: Tensor, clock: Clock) -> Tensor:
        """Score the answers to a batch.

        Args:
            logits: [B, K], with gradient.
            labels: int64 [B], 0 to K - 1 in the site's own grading scheme.
            clock: Where training stands; only annealed objectives read it.

        Returns:
            The mean loss of the batch: a scalar with gradient, float32.
        """
        ...


objective: Register[Callable[[Any], Objective]] = Register("fedretina.losses")
"""Registers the class below it as the objective of some settings, which are its one argument."""


def build_objective(settings: ObjectiveSettings) -> Objective:
    """Build the objective that the settings name.

    Returns:
        An objective without state of its own: one instance serves any number of rounds.
    """
    return objective.of(settings)(settings)
