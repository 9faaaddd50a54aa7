import errno
import os
import subprocess
import sys
import time

import pytest
import torch

from fedretina import storage
from fedretina.errors import StateError

STATE = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "n": torch.tensor(7)}


def test_tensors_and_record_come_back(tmp_path):
    storage.write_tensors(tmp_path / "x.safetensors", STATE, {"step": 3})
    tensors, record = storage.read_tensors(tmp_path / "x.safetensors")
    assert record["step"] == 3
    assert tensors["n"].item() == 7
    assert torch.equal(tensors["a"], STATE["a"])


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_full_disk_leaves_the_old_file_whole(tmp_path, monkeypatch, failing):
    path = tmp_path / "x.safetensors"
    storage.write_tensors(path, STATE, {"step": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(StateError, match="the disk is full"):
        storage.write_tensors(path, {"a": torch.zeros(2, 3)}, {"step": 2})
    monkeypatch.undo()
    assert storage.read_tensors(path)[1]["step"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.safetensors"]


def test_damaged_and_foreign_files_are_told(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(StateError, match="is missing"):
        storage.read_tensors(path)
    storage.write_tensors(path, STATE, {})
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StateError, match="cannot be read"):
        storage.read_tensors(path)
    from safetensors.torch import save_file

    save_file(STATE, path, metadata={"fedretina": '{"format": 99}'})
    with pytest.raises(StateError, match="format 99"):
        storage.read_tensors(path)


def test_records_are_strict_json(tmp_path):
    storage.write_json(tmp_path / "r.json", {"b": 1, "a": [1.5, None]})
    assert storage.read_json(tmp_path / "r.json") == {"a": [1.5, None], "b": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        storage.write_json(tmp_path / "r.json", {"a": float("nan")})
    assert storage.read_json(tmp_path / "r.json")["b"] == 1
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(StateError, match="cannot be read"):
        storage.read_json(tmp_path / "r.json")


def test_a_held_folder_is_refused_and_free_after_its_holder_died(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from fedretina.storage import folder_lock\n"
        "with folder_lock(Path(sys.argv[1]), 0): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(StateError, match="in use by another process"), storage.folder_lock(tmp_path, 0.3):
            pass
    finally:
        holder.kill()
        holder.wait()
    began = time.monotonic()
    with storage.folder_lock(tmp_path, 5):
        assert time.monotonic() - began < 5


def test_what_a_killed_process_left_half_written_goes_with_the_next_lock(tmp_path):
    (tmp_path / "final").mkdir()
    left = [tmp_path / ".x.safetensors.123.tmp", tmp_path / "final" / ".model.safetensors.7.tmp"]
    kept = [tmp_path / "x.safetensors", tmp_path / ".notes.tmp", tmp_path / "final" / "a.123.tmp"]
    for path in (*left, *kept):
        path.write_text("half")
    with storage.folder_lock(tmp_path, 0):
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in kept)
