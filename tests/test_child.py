"""A process that is told to ends with its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import os, time

from fedretina.child import pool

if __name__ == "__main__":
    with pool(1) as workers:
        child, work = workers.submit(os.getpid).result(), workers.submit(time.sleep, 600)
        while not work.running():
            time.sleep(0.01)
        print(child, flush=True)
        time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_in_the_middle_of_its_work_ends_with_a_parent_that_was_killed(tmp_path, how):
    (tmp_path / "parent.py").write_text(PARENT)
    with subprocess.Popen([sys.executable, tmp_path / "parent.py"], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        os.kill(parent.pid, how)
        parent.wait(20)
    deadline = time.monotonic() + 20
    try:
        while _runs(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _runs(child)
    finally:
        if _runs(child):
            os.kill(child, signal.SIGKILL)


def _runs(process):
    """Whether a process runs; one that ended may wait for somebody to ask after it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
