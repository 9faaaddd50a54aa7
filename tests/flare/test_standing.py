"""The guard of the tests that wait for a federation: what it says of a process that does not go on."""

import os
import subprocess
import sys

import psutil
from standing import CEILING_S, standing

STUCK = """
import signal
import time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGABRT})
def stuck_here():
    print("up", flush=True)
    while not signal.sigpending():
        time.sleep(0.05)
    time.sleep(3)  # as where it has no core for so long
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGABRT})
stuck_here()
"""


def test_a_frozen_process_is_named_with_its_step_and_the_stack_of_what_it_did(tmp_path):
    server = tmp_path / "study" / "server"
    server.mkdir(parents=True)
    (server / "run.json").write_text('{"done": 2}')
    log = tmp_path / "console.txt"
    with open(log, "ab") as handle:
        process = subprocess.Popen(
            [sys.executable, "-c", STUCK],
            stdout=subprocess.PIPE,
            stderr=handle,
            text=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
    try:
        assert process.stdout.readline() == "up\n"
        frozen = psutil.Process(process.pid)
        frozen.suspend()
        said = standing([frozen], [log], tmp_path)
        assert "study: 2 steps are done" in said
        assert f"process {process.pid}" in said
        assert "in stuck_here" in said
        assert process.wait(CEILING_S) != 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
