"""When Python looks for garbage: rarely in fedretina's own processes, by bytes in a server's, and not at the end."""

from __future__ import annotations

import atexit
import gc
import sys
import threading

_OBJECTS = 10_000
_BYTES = 64 * 2**20


def collect_rarely() -> None:
    """Look for garbage at each 10,000 new objects, not at each 700, from now on.

    What is imported stays, and importing torch and MONAI takes a fifth less CPU time when it is gone through less
    often. Not for a process that holds the messages of many sites: what refers to itself stays in memory for longer.
    """
    first, *older = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS, first), *older)


class CollectByBytes:
    """Looks for garbage each time that 64 MB of messages have passed.

    What FLARE notes of a message refers to itself and to the message's bytes, so it stays until Python looks for
    garbage. Python counts objects, and these are few and large: with 16 sites most of a round's bytes lay in memory
    once more. All that is loaded when this begins is passed over from then on, which makes a look a matter of
    milliseconds.
    """

    def __init__(self) -> None:
        self._passed, self._lock = 0, threading.Lock()
        gc.collect()
        gc.freeze()

    def note(self, size: int) -> None:
        """Note that a part of a message has passed; from any thread.

        Args:
            size: Its bytes.
        """
        with self._lock:
            self._passed += size
            if self._passed < _BYTES:
                return
            self._passed = 0
        gc.collect()

    def end(self) -> None:
        """Go through everything again from now on."""
        gc.unfreeze()


def end_quickly() -> None:
    """Let this process, once it ends, pass over everything that is in memory by then.

    At its end Python collects garbage among all objects that are left, and with torch and FLARE imported these are some
    million: 0.7 of the 2.6 CPU seconds of a process that does nothing else. Called again it changes nothing.
    """
    atexit.unregister(_pass_over)
    atexit.register(_pass_over)


def _pass_over() -> None:
    # Triton, which timm's encoders bring along, prints pages about objects that it still finds then.
    if "triton" not in sys.modules:
        gc.freeze()
