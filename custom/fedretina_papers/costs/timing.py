"""Time of a step, for benchmarks alone: no test, and no decision of a run, may depend on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedretina.errors import SettingsError
from fedretina_papers.costs.workload import Step


class StepTime(NamedTuple):
    """Seconds of one step.

    Attributes:
        median: The middle of all repeats; a mean would carry what else the machine did.
        low: Lower quartile.
        high: Upper quartile.
        repeats: Number of repeats.
    """

    median: float
    low: float
    high: float
    repeats: int


def step_seconds(
    step: Step,
    repeats: int = 20,
    warm_up: int = 3,
    synchronise: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> StepTime:
    """Time a step by itself.

    Args:
        step: See `Workload`; the time of a training step holds forward, backward and update, not the loading of images.
        repeats: How often, 1 or more.
        warm_up: Steps before that are not counted: the first ones allocate and choose algorithms.
        synchronise: Waits for the device, `torch.cuda.synchronize` for CUDA, where a step returns before its work is
            done.
        clock: Seconds of some clock.

    Raises:
        SettingsError: repeats or warm_up is out of range.
    """
    if repeats < 1 or warm_up < 0:
        raise SettingsError(f"{repeats} repeats after {warm_up} to warm up were asked for: use 1 and 0 or more.")
    wait = synchronise or _nothing
    for _ in range(warm_up):
        step()
    taken = []
    for _ in range(repeats):
        wait()
        began = clock()
        step()
        wait()
        taken.append(clock() - began)
    low, median, high = np.quantile(taken, [0.25, 0.5, 0.75])
    return StepTime(float(median), float(low), float(high), repeats)


def _nothing() -> None:
    """The CPU is done when a step returns."""
