"""What a call of a benchmark may take: minutes, and what it may leave behind."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedretina.errors import SettingsError, StoppedError

_RESERVE_S = 20.0
Clock = Callable[[], float]


class Limits(NamedTuple):
    """What is asked of one call.

    Attributes:
        minutes: Time of the call, with what it builds and writes; None for as long as it takes.
        cache: Folder of the image caches; None for the folder OUT-cache beside the benchmark's.
        state_mb: Most that runs which have not ended leave in the benchmark's folder, in MB of 1e6 bytes; None where
            nobody asked.
        clock: Gives seconds that only grow, the same in every process of the machine.
    """

    minutes: float | None = None
    cache: Path | None = None
    state_mb: int | None = None
    clock: Clock = time.monotonic

    def require_none(self, benchmark: str) -> None:
        """Refuse what only `paper-size` and `gpu` read.

        Raises:
            SettingsError: Something was asked.
        """
        asked = {"--minutes": self.minutes, "--cache": self.cache, "--state-mb": self.state_mb}
        given = [name for name, value in asked.items() if value is not None]
        if given:
            raise SettingsError(
                f"{' and '.join(given)} can be used with paper-size and gpu alone, and the benchmark is {benchmark}: "
                "leave it out."
            )

    def cache_of(self, out: Path) -> Path:
        """The folder of the image caches of a benchmark's folder."""
        return self.cache or out.with_name(f"{out.name}-cache")


class Budget(NamedTuple):
    """When a call has to be done with its work; a part of the time is kept for what it writes at its end.

    Attributes:
        end: On the clock, in seconds; infinite where nobody waits.
        clock: As in `Limits`.
    """

    end: float
    clock: Clock = time.monotonic

    @classmethod
    def of(cls, limits: Limits) -> Budget:
        """The budget of a call that begins now."""
        if limits.minutes is None:
            return cls(math.inf, limits.clock)
        seconds = 60 * limits.minutes
        return cls(limits.clock() + seconds - min(_RESERVE_S, seconds / 10), limits.clock)

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 when the time is over."""
        return self.end - self.clock()


class Pace:
    """Ends a run before what would not be done in time, going by the longest order or round so far.

    It stands in `run_loop`'s `tell`: what was answered before an order is durable, so that the next call goes on from
    there. Of a run in one place nothing is: it ends as soon as the rest of it would not be done in time.

    Args:
        budget: Of the call.
        longest: Seconds of the longest order that is known of such runs; 0 where none is.
        whole: Whether the run must end in this call, or begins anew.

    Attributes:
        longest: Seconds of the longest order, or round, of this run or of those before.
    """

    def __init__(self, budget: Budget, longest: float, whole: bool = False) -> None:
        self._budget = budget
        self._whole = whole
        self._began = budget.clock() if whole else 0.0
        self._last: float | None = None
        self.longest = longest

    def __call__(self, done: int, of: int) -> None:
        """Note that an order begins, or that a round has ended; how many are done, and of how many.

        Raises:
            StoppedError: It would not be done in time.
        """
        now = self._budget.clock()
        left, first = self._budget.end - now, self._last is None
        if self._last is not None:
            self.longest = max(self.longest, now - self._last)
        self._last = now
        needed = self.longest * (of - done if self._whole else 1)
        if self._whole and first:  # the first round also holds what a run sets up, so that it tells of one more alone
            needed = now - self._began
        if done < of and left <= needed:
            if self._whole:
                asked = f" of about {(needed - left) / 60:.0f} min more" if self.longest else ""
                raise StoppedError(f"given up after {done} of {of} rounds, it begins anew in a call{asked}.")
            raise StoppedError(f"the time of this call is over after {done} of {of} orders; the next one goes on.")
