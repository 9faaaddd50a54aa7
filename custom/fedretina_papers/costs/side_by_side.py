"""Times of several steps measured in turn, so that what else the machine does falls on all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fedretina.errors import SettingsError
from fedretina_papers.costs.workload import Step


class Spread(NamedTuple):
    """A figure over repeats.

    Attributes:
        median: The middle of them.
        low: Lower quartile.
        high: Upper quartile.
    """

    median: float
    low: float
    high: float


class Beside(NamedTuple):
    """A step beside another one.

    Attributes:
        seconds: Its own time.
        ratio: Its time over that of the base in the same turn: both met the same load, so that this is steadier than
            the ratio of the medians.
    """

    seconds: Spread
    ratio: Spread


def side_by_side(
    steps: Mapping[str, Step],
    base: str,
    repeats: int = 20,
    warm_up: int = 2,
    synchronise: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Beside]:
    """Time steps in turn; each turn begins with another one.

    Args:
        steps: By name.
        base: The step that the others are set beside.
        repeats: Turns, 1 or more.
        warm_up: Turns before that are not counted.
        synchronise: Waits for the device where a step returns before its work is done.
        clock: Seconds of some clock.

    Raises:
        SettingsError: repeats or warm_up is out of range, or the base is none of the steps.
    """
    if repeats < 1 or warm_up < 0 or base not in steps:
        raise SettingsError(
            f"{repeats} turns after {warm_up} to warm up beside {base!r} were asked for: use 1 and 0 or more, and one "
            f"of {', '.join(steps)}."
        )
    wait = synchronise or _nothing
    names = list(steps)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warm_up, repeats):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            wait()
            began = clock()
            steps[name]()
            wait()
            if turn >= 0:
                taken[name].append(clock() - began)
    bases = np.asarray(taken[base])
    return {name: Beside(_spread(np.asarray(own)), _spread(np.asarray(own) / bases)) for name, own in taken.items()}


def _spread(values: np.ndarray) -> Spread:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return Spread(float(median), float(low), float(high))


def _nothing() -> None:
    """The CPU is done when a step returns."""
