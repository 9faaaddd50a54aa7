"""What a call of a benchmark may take: minutes, and what it may leave behind."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedretina.errors import SettingsError, StoppedError

_RESERVE_S = 20.0
_UNKNOWN_S = 30.0
"""A first order also reads weights, and a card chooses its kernels."""
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
        whole: Seconds that it has in all; infinite where nobody waits.
    """

    end: float
    clock: Clock = time.monotonic
    whole: float = math.inf

    @classmethod
    def of(cls, limits: Limits) -> Budget:
        """The budget of a call that begins now."""
        if limits.minutes is None:
            return cls(math.inf, limits.clock)
        seconds = 60 * limits.minutes
        whole = seconds - min(_RESERVE_S, seconds / 10)
        return cls(limits.clock() + whole, limits.clock, whole)

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 when the time is over."""
        return self.end - self.clock()

    @property
    def unknown(self) -> float:
        """Seconds that must be left where something begins of which nobody knows how long it takes."""
        return 0.0 if math.isinf(self.whole) else min(_UNKNOWN_S, self.whole / 4)


class Expected(NamedTuple):
    """What a run is expected to take, in seconds.

    Attributes:
        order: The longest order to a site.
        round: The longest round: an order to each site.
    """

    order: float
    round: float


class Pace:
    """Ends a run before a round that would not be done in time, by what is expected of it and by the longest so far.

    It stands in `tell` of `run_loop` and of `train_in_one_place`. A round that is whole is durable, and the next call
    goes on behind it. Orders of a round that is not are done again, so that none of it is begun that would not fit.

    Args:
        budget: Of the call.
        expected: What is known before the run begins.
        orders: Orders of a round.
        longest: As the attribute, of earlier calls.

    Attributes:
        longest: Seconds that the longest order of this run took; 0 before one was done.
    """

    def __init__(self, budget: Budget, expected: Expected, orders: int = 1, longest: float = 0.0) -> None:
        self._budget = budget
        self._expected = expected
        self._orders = orders
        self._round = 0.0
        self._last: float | None = None
        self._began: float | None = None
        self.longest = longest

    def __call__(self, done: int, of: int) -> None:
        """Note that an order begins; how many are done, and of how many.

        Raises:
            StoppedError: It, or the round that begins with it, would not be done in time.
        """
        now, begins = self._budget.clock(), done % self._orders == 0
        if self._last is not None:
            self.longest = max(self.longest, now - self._last)
        if begins and self._began is not None:
            self._round = max(self._round, now - self._began)
        self._last, self._began = now, now if begins else self._began
        needed = max(self.longest, self._expected.order)
        if begins:
            needed = max(needed, self._round, self._expected.round)
        if done < of and self._budget.end - now <= needed:
            if needed > self._budget.whole:
                raise StoppedError(
                    f"waits after {done} of {of} orders: a round takes about {needed / 60:.0f} min, more than a call "
                    "has; give more --minutes, or lower --jobs."
                )
            raise StoppedError(f"the time of this call is over after {done} of {of} orders; the next one goes on.")
