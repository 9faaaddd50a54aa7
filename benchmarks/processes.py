"""The end of processes that a benchmark started, and of none else."""

from __future__ import annotations

import subprocess

import psutil  # FLARE depends on it

_WAIT_S = 10.0


def end_tree(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """End a process and all that it started; do nothing when it has ended.

    FLARE's simulator gives each site a process group of its own, so a signal to one group would miss them.
    """
    if process.poll() is not None:
        return
    parent = psutil.Process(process.pid)
    tree = [*parent.children(recursive=True), parent]
    for member in tree:
        _signal(member, gently=True)
    _, alive = psutil.wait_procs(tree, _WAIT_S)
    for member in alive:
        _signal(member, gently=False)
    process.wait()


def _signal(member: psutil.Process, gently: bool) -> None:
    try:
        if gently:
            member.terminate()
        else:
            member.kill()
    except psutil.NoSuchProcess:
        return
