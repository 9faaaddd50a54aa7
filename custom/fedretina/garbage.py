"""When Python looks for garbage: not among what is being imported, nor at the end of a process."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 10_000


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage inside, for instance while something large is imported.

    All that is imported stays, and is a million objects; Python goes through it again and again while it grows, for a
    fifth of the CPU time of importing torch, FLARE and MONAI.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def spare_this_process() -> None:
    """Look for garbage rarely in this process, which is all fedretina's own, and not at all once it ends.

    Each 10,000 new objects in place of each 700, so that whatever it imports later is gone through less often. At its
    end Python collects among all objects that are left, which are some million: 0.7 of the 2.6 CPU seconds of a process
    that imports torch and FLARE and does nothing else. Called again it changes nothing.
    """
    gc.set_threshold(max(_OBJECTS, gc.get_threshold()[0]), *gc.get_threshold()[1:])
    atexit.unregister(_pass_over)
    atexit.register(_pass_over)


def _pass_over() -> None:
    # Triton, which timm's encoders bring along, prints pages about objects that it still finds then.
    if "triton" not in sys.modules:
        gc.freeze()
