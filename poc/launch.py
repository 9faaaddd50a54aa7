"""Becomes another program that Linux ends with SIGKILL as soon as the process that asked for it dies.

Run as `python launch.py PARENT PROGRAM ARGUMENT...`; a script of its own, since what a forked process with threads may
do before it becomes another program is next to nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel, and go."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(sys.argv[1]):  # it died before it was asked
            sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
