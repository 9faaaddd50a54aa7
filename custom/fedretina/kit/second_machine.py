"""A second machine that comes with a site's startup kit while the first is there: what is noted and said of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

CHANNEL, TOPIC = "fedretina", "second_machine"
"""Where the server sends its word to the machine that stays."""
REFUSED = "fedretina_refused"
"""Property of the server's handshake that tells a refused machine why."""
COMMAND = "second_machines"
"""Name of the admin's command that lists them, and of the list in its answer's meta."""
ONGOING_S = 60.0
"""How long after its last attempt a second machine counts as still there; FLARE's client tries every 10 s at most."""
_REMEMBERED_S = 24 * 3600.0
_MANUAL = "docs/runbooks.md, A kit on two machines"


class SecondMachine(NamedTuple):
    """Attempts of a second machine to join as a site whose first machine is connected and answers.

    Attributes:
        site: The site.
        refused: Address of the machine that was refused last.
        there: Address of the machine that is connected and stays.
        since: When it was first refused, in seconds since 1970.
        last: When it was last refused, in seconds since 1970.
        times: How often it was refused.
        ongoing: Whether it was refused within the last minute, by the server's clock.
    """

    site: str
    refused: str
    there: str
    since: float
    last: float
    times: int
    ongoing: bool

    @classmethod
    def read(cls, record: object) -> SecondMachine | None:
        """Take what a server says; None where it is of another form."""
        if not isinstance(record, Mapping) or set(record) != set(cls._fields):
            return None
        try:
            return cls(
                str(record["site"]),
                str(record["refused"]),
                str(record["there"]),
                float(record["since"]),
                float(record["last"]),
                int(record["times"]),
                bool(record["ongoing"]),
            )
        except (TypeError, ValueError):
            return None

    def record(self) -> dict[str, Any]:
        """The form in which the server and the JSON output say it."""
        return self._asdict()

    def words(self) -> str:
        """One sentence for the server's log and for admins."""
        tried = "is being refused" if self.ongoing else f"was refused until {_moment(self.last)}"
        return (
            f"{self.site}: a second machine with its kit, at {self.refused}, {tried} ({self.times} times since "
            f"{_moment(self.since)}); the one at {self.there} stays: {_MANUAL}"
        )

    def words_for_the_first(self) -> str:
        """What the machine that stays is told."""
        return (
            f"a second machine with this site's kit, at {self.refused}, tries to join and is refused; this one, at "
            f"{self.there}, goes on. If it is a copy of this machine, stop one of the two; if nobody here knows it, "
            f"the kit was stolen: {_MANUAL}"
        )

    def words_for_the_second(self) -> str:
        """What the machine that is refused is told."""
        return (
            f"the server refuses this machine, at {self.refused}: another one with this site's kit, at {self.there}, "
            "is connected and answers. Stop one of the two; this one tries again every few seconds and joins by itself "
            f"once the other has ended. If nobody here knows the other, the kit was stolen: {_MANUAL}"
        )


class SecondMachines:
    """The second machines that a server has refused; safe to use from several threads.

    Args:
        clock: Says the time in seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, SecondMachine] = {}
        self._told: dict[str, float] = {}

    def refused(self, site: str, refused: str, there: str) -> tuple[SecondMachine, bool]:
        """Note one refusal.

        Args:
            site: The site.
            refused: Address of the machine that is refused.
            there: Address of the machine that stays.

        Returns:
            All that is known of it, and whether it is time to tell: at once, then once a minute.
        """
        now = self._clock()
        with self._lock:
            known = self._known.get(site)
            if known is None or now - known.last >= ONGOING_S:
                known = SecondMachine(site, refused, there, now, now, 0, True)
            known = known._replace(refused=refused, there=there, last=now, times=known.times + 1)
            self._known[site] = known
            tell = now - self._told.get(site, -ONGOING_S) >= ONGOING_S
            if tell:
                self._told[site] = now
            return known, tell

    def current(self) -> list[SecondMachine]:
        """Those of the last 24 hours, by name of the site."""
        now = self._clock()
        with self._lock:
            found = [self._known[site] for site in sorted(self._known)]
        return [one._replace(ongoing=now - one.last < ONGOING_S) for one in found if now - one.last < _REMEMBERED_S]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
