"""Processes that do several runs at a time."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from fedretina.errors import StateError
from fedretina_papers.processes import ended, pool
from fedretina_papers.runner import _outcomes

PARENT = """
import os, signal, time

from fedretina_papers.processes import pool

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background has it ignored
    with pool(1) as workers:
        child, work = workers.submit(os.getpid).result(), workers.submit(time.sleep, 600)
        while not work.running():
            time.sleep(0.01)
        print(child, flush=True)
        time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_child_in_the_middle_of_its_work_ends_with_a_parent_that_is_stopped(tmp_path, how):
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


def test_one_that_ends_abruptly_is_an_error_that_says_what_to_do():
    with (
        pytest.raises(StateError, match=r"what has run is stored; call again, with fewer --jobs\."),
        pool(2) as workers,
    ):
        workers.submit(signal.raise_signal, signal.SIGKILL).result()


def test_runs_of_a_benchmark_are_no_exception():
    with pytest.raises(StateError, match="ended abruptly"):
        list(_outcomes(signal.raise_signal, [signal.SIGKILL] * 2, 2))


def test_after_an_error_nothing_else_begins(tmp_path):
    calls = [("bad", partial(time.sleep, -1)), *((name, partial(os.mkdir, tmp_path / name)) for name in "abcdef")]
    with pytest.raises(ValueError, match="sleep length"), pool(2) as workers:  # noqa: PT012
        for _, call in ended(workers, 2, calls):
            call.result()
    assert {one.name for one in tmp_path.iterdir()} <= {"a", "b"}


def test_no_more_are_handed_over_than_there_are_processes():
    class Workers:
        def submit(self, call):
            busy.append(done := Future())
            assert len(busy) <= 2
            done.set_result(call())
            return done

    busy, names = [], []
    for name, _ in ended(Workers(), 2, [(number, int) for number in range(7)]):
        names.append(name)
        busy.pop()
    assert sorted(names) == [*range(7)]


def _runs(process):
    """Whether a process runs; one that ended may wait for somebody to ask after it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
