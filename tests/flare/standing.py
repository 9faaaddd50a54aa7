"""Where the processes of a federation stand: what a test that waited in vain says before it fails."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

CEILING_S = 600.0
"""How long a test waits for an event of a federation. A machine may be slow; only what has stopped takes so long."""
_TAIL, _STACKS = 3_000, 12_000
_LAST_WORDS_S = 60.0  # how long an aborted process has to write its stacks and to end


def standing(processes: Iterable[psutil.Process], logs: Sequence[Path], folder: Path) -> str:
    """Say where a federation stands, and abort its processes, so that each prints the stacks of its threads.

    It takes `PYTHONFAULTHANDLER` in their environment, which tests/conftest.py sets.

    Args:
        processes: All of them.
        logs: What they print into.
        folder: Where the runs' states lie, at any depth.

    Returns:
        The next step of each run, each process with what it has done, the end of each log, and the stacks.
    """
    told = []
    for path in sorted(folder.rglob("run.json")):
        with suppress(OSError, ValueError):
            told.append(f"{path.parent.parent.name}: {json.loads(path.read_text()).get('done')} steps are done")
    held = list(processes)
    for process in held:
        with suppress(psutil.Error):
            told.append(
                f"process {process.pid}, {process.status()}, {sum(process.cpu_times()[:2]):.0f} s of CPU: "
                f"{' '.join(process.cmdline())[:300]}"
            )
    sizes = {path: path.stat().st_size for path in logs if path.exists()}
    told += [f"--- the end of {path}\n{path.read_text(errors='replace')[-_TAIL:]}" for path in sizes]
    for process in held:
        with suppress(psutil.Error):
            process.resume()  # a frozen one prints nothing
            process.send_signal(signal.SIGABRT)
    until = time.monotonic() + _LAST_WORDS_S
    while any(_alive(process) for process in held) and time.monotonic() < until:
        time.sleep(0.05)
    for path, size in sizes.items():
        told.append(f"--- stacks in {path}\n{path.read_bytes()[size:].decode(errors='replace')[:_STACKS]}")
    return "\n".join(told)


def _alive(process: psutil.Process) -> bool:
    """Not `psutil.wait_procs`, which takes the status of a child that its test still asks for."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
