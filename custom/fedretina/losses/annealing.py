"""The weight lambda of the KL term: it grows, so that a network learns before it is told to doubt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fedretina.errors import SettingsError
from fedretina.losses.objective import Clock
from fedretina.settings.objective import KlSchedule

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
