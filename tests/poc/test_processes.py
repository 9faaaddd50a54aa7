"""Only FLARE's processes of the folder are found and ended."""

import subprocess
import sys

from poc.processes import belonging, end_all

from poc import processes

SLEEP = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def start(code, *words):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], stdout=subprocess.PIPE)


def test_what_belongs_is_ended_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_GENTLE_S", 0.5)  # the stubborn one would use up all of it
    ours = start(SLEEP, "nvflare.private.fed.app.server.server_train", "-m", tmp_path / "here" / "kit")
    stubborn = start(STUBBORN, "nvflare.private.fed.app.client.worker_process", "-m", tmp_path / "here" / "kit")
    elsewhere = start(SLEEP, "nvflare.private.fed.app.server.server_train", "-m", tmp_path / "here-too" / "kit")
    reader = start(SLEEP, "watch", "--kit", tmp_path / "here" / "kit")
    everyone = (ours, stubborn, elsewhere, reader)
    try:
        assert stubborn.stdout.readline() == b"up\n"
        assert {process.pid for process in belonging(tmp_path / "here")} == {ours.pid, stubborn.pid}
        assert end_all(tmp_path / "here") == 2
        assert belonging(tmp_path / "here") == []
        assert elsewhere.poll() is None
        assert reader.poll() is None
    finally:
        for process in everyone:
            process.kill()
            process.communicate()
