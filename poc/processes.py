"""Processes of the rehearsal: started so that they end with it, found by their folder, ended by their id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

_LAUNCH = Path(__file__).with_name("launch.py")
_FLARE, _SCRIPT = "nvflare.private.fed.app.", "sub_start.sh"
_GENTLE_S = 5.0


def start_kit(kit: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the FLARE process of a server's or site's kit, without the watchdog that would start it again.

    It has a session of its own, so that Ctrl-C reaches this process only, which then ends the rest in order; and on
    Linux the kernel ends it when this process dies without doing so.
    """
    with open(kit / "console.txt", "ab") as log:
        return subprocess.Popen(
            [sys.executable, str(_LAUNCH), str(os.getpid()), "bash", str(kit / "startup" / "sub_start.sh"), "--once"],
            cwd=kit,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def belonging(folder: Path) -> list[psutil.Process]:
    """FLARE's processes of kits below the folder, and those of their jobs.

    FLARE gives a job's processes sessions of their own, so neither group nor parent finds them all; the command line
    of each names its kit. Somebody's editor or `fedretina watch` may name it too, and is left alone.
    """
    inside = f"{folder.resolve()}{os.sep}"
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        ours = any(word.startswith(_FLARE) or word.endswith(_SCRIPT) for word in words)
        if ours and any(word.startswith(inside) for word in words):
            found.append(process)
    return found


def end_all(folder: Path) -> int:
    """End what belongs to the folder: SIGTERM, and SIGKILL after five seconds.

    Returns:
        How many processes there were.
    """
    ended = 0
    while found := belonging(folder):  # a process may have started another in the meantime
        ended += len(found)
        for process in found:
            _send(process, signal.SIGTERM)
        _, left = psutil.wait_procs(found, timeout=_GENTLE_S)
        for process in left:
            _send(process, signal.SIGKILL)
        psutil.wait_procs(left, timeout=_GENTLE_S)
    return ended


def _send(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
