"""Child processes that end with their parent, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends, by a kill too; the kernel's part on Linux alone.

    What would else go on writes into a folder that the next call has taken over. The kernel counts the thread that
    began this process as its parent: begin it from one that stays.

    Args:
        parent: The number of the process that began this one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it was asked
        sys.exit(1)
