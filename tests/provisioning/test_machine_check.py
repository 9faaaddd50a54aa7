"""What a machine must give a site: real locks, real processes; the machine's own folders stand elsewhere."""

import json
import subprocess
import sys
import time
from collections import namedtuple

import pytest

from fedretina.kit import machine_check
from fedretina.kit.site_check import SILENT_S, process_path, serves
from fedretina.locks import folder_lock

Usage = namedtuple("Usage", "total used free")


def test_a_gpu_that_the_process_does_not_see(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_check, "_DEVICES", tmp_path)
    monkeypatch.setattr(machine_check, "devices_seen", list)
    for name in ("nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert machine_check.gpu().good is None
    assert "the processor does the work" in machine_check.gpu().found
    (tmp_path / "nvidia0").touch()
    assert machine_check.gpu()[1:3] == (False, "the machine has 1, this process sees none")
    monkeypatch.setattr(machine_check, "devices_seen", lambda: ["H100"])
    assert machine_check.gpu().found == "this process sees H100"
    assert machine_check.gpu(offered=1).good is None
    assert machine_check.gpu(offered=2).found == "the kit offers jobs 2, this process sees 1"


@pytest.mark.parametrize(("free", "good"), [(64_000_000, True), (8_000_000, False)])
def test_shared_memory_that_is_small_or_gone(monkeypatch, tmp_path, free, good):
    monkeypatch.setattr(machine_check.shutil, "disk_usage", lambda _: Usage(64_000_000, 64_000_000 - free, free))
    assert machine_check.shared_memory().good is good
    monkeypatch.undo()
    monkeypatch.setattr(machine_check, "_SHM", tmp_path / "shm")
    assert "is not there" in machine_check.shared_memory().found


def test_a_cache_that_cannot_be_written(tmp_path):
    assert machine_check.cache(tmp_path / "cache", tmp_path).good
    (tmp_path / "file").touch()
    assert machine_check.cache(tmp_path / "file", tmp_path / "file").good is False
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_locks_that_were_left_behind(tmp_path):
    kit, root = tmp_path / "kit", tmp_path / "runs"
    kit.mkdir()
    look = lambda running: machine_check.locks(kit, root, "site-1", running)  # noqa: E731
    with folder_lock(root / "spring" / "site-1", 0):
        assert look(True).good
        assert look(False).found == "a process still holds run spring, and the service does not run"
    assert look(False).good  # the file is still there, and nobody holds it
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd="/") as other:
        (kit / "daemon_pid.fl").write_text(f"{other.pid}\n")
        assert look(True).found == f"daemon_pid.fl names process {other.pid}, which is another program's"
    assert look(True).good  # nothing runs under that number any more, so FLARE's script starts
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=kit) as ours:
        (kit / "daemon_pid.fl").write_text(str(ours.pid))
        assert look(True).good
    (kit / "daemon_pid.fl").write_text("none")
    assert look(True).good


def test_a_service_runs_by_its_own_last_word(tmp_path):
    path = process_path(tmp_path, "site-1")
    path.parent.mkdir()
    assert serves(tmp_path, "site-1")  # a kit of an older version says nothing
    for said, runs in (
        ({"stopped": False, "written": time.time()}, True),
        ({"stopped": True, "written": time.time()}, False),
        ({"stopped": False, "written": time.time() - SILENT_S - 60}, False),
    ):
        path.write_text(json.dumps(said))
        assert serves(tmp_path, "site-1") is runs
