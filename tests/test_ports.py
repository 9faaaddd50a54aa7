"""Ports that tests are given: no two processes the same, and none that is taken."""

import socket
import subprocess
import sys
from pathlib import Path

from ports import free_port

ASKS = "import sys; from ports import free_port; print(*[free_port() for _ in range(5)], flush=True); sys.stdin.read()"


def test_no_two_processes_are_given_the_same_port_nor_any_one_that_is_taken():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    others = [subprocess.Popen([sys.executable, "-c", ASKS], cwd=Path(__file__).parent, **pipes) for _ in range(2)]
    try:
        theirs = [int(port) for other in others for port in other.stdout.readline().split()]
        ours = [free_port() for _ in range(5)]
        assert len({*theirs, *ours}) == 15
        with socket.create_server(("127.0.0.1", ours[-1] + 1)) as taken:
            assert free_port() != taken.getsockname()[1]
    finally:
        for other in others:
            other.communicate()
