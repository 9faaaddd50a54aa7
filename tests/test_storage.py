import errno
import json
import os
import stat
import subprocess
import sys
import threading

import pytest
import torch

from fedretina import storage
from fedretina.errors import DataError, StateError
from fedretina.exchange.noise import noise_key
from fedretina.kit import authority
from fedretina.locks import folder_lock
from fedretina.storage import filled_folder

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


def test_two_threads_may_write_one_record_at_once(tmp_path, monkeypatch):
    both, replace, faults = threading.Barrier(2, timeout=30), os.replace, []

    def together(temporary, path):
        both.wait()
        replace(temporary, path)

    def write(number):
        try:
            storage.write_json(tmp_path / "r.json", {"by": number}, durable=False)
        except StateError as error:
            faults.append(error)

    monkeypatch.setattr(os, "replace", together)
    threads = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert storage.read_json(tmp_path / "r.json")["by"] in (1, 2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.json"]


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
        "import sys, time; from pathlib import Path; from fedretina.locks import folder_lock\n"
        "with folder_lock(Path(sys.argv[1]), 0): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(StateError, match="in use by another process"), folder_lock(tmp_path, 0.3):
            pass
    finally:
        holder.kill()
        holder.wait()
    with folder_lock(tmp_path, 0):  # it is free, without a wait
        pass


def test_what_a_killed_process_left_half_written_goes_with_the_next_lock(tmp_path):
    (tmp_path / "final").mkdir()
    left = [tmp_path / ".x.safetensors.123.tmp", tmp_path / "final" / ".model.safetensors.7.8.tmp"]
    kept = [tmp_path / "x.safetensors", tmp_path / ".notes.tmp", tmp_path / "final" / "a.123.tmp"]
    for path in (*left, *kept):
        path.write_text("half")
    with folder_lock(tmp_path, 0):
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in kept)


@pytest.fixture
def rights(monkeypatch):
    """The rights that each file has at the moment at which it gets its name, under a umask that is open to readers."""
    before, found, replace = os.umask(0o022), {}, os.replace

    def seen(temporary, path):
        found[os.path.basename(path)] = stat.S_IMODE(os.stat(temporary).st_mode)
        replace(temporary, path)

    monkeypatch.setattr(os, "replace", seen)
    yield found
    os.umask(before)


def test_a_secret_is_the_owners_alone_before_it_has_its_name(tmp_path, rights):
    storage.write_text(tmp_path / "plain", "x")
    left = tmp_path / f".secret.{os.getpid()}.{threading.get_native_id()}.tmp"
    left.write_text("left by a killed process, open to all")
    (tmp_path / "secret").write_text("the old one")
    storage.write_text(tmp_path / "secret", "\u00e9", mode=0o600)
    assert rights == {"plain": 0o644, "secret": 0o600}
    assert (tmp_path / "secret").read_text(encoding="utf-8") == "\u00e9"
    assert not left.exists()


def test_what_others_read_is_open_to_them_under_any_umask(tmp_path, rights):
    os.umask(0o077)
    storage.write_text(tmp_path / "unit", "x", mode=0o644)
    storage.write_bytes(tmp_path / "answer", b"x", 0o640)
    storage.write_text(tmp_path / "plain", "x")
    assert rights == {"unit": 0o644, "answer": 0o640, "plain": 0o600}


def test_the_authoritys_key_is_never_open_to_others(tmp_path, rights):
    held = {"root_cert": "x", "root_pri_key": "SECRET", "site-1": {"cert": "y"}}
    (tmp_path / "cert.json").write_text(json.dumps(held))
    authority.forget(tmp_path, ["site-1"])
    assert rights == {"cert.json": 0o600, "cert.json.before_renewal": 0o600}
    for name in rights:
        assert "SECRET" in (tmp_path / name).read_text()
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_the_key_of_the_noise_is_never_open_to_others(tmp_path, rights):
    noise_key(tmp_path / "noise.key")
    assert rights == {"noise.key": 0o600}


def test_a_folder_is_filled_wholly_or_not_at_all(tmp_path):
    out = tmp_path / "new" / "out"

    def stopped():
        with filled_folder(out, "the clients") as half:
            (half / "part").mkdir()
            (half / "part" / "a.csv").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert not (tmp_path / "new").exists()
    (out / ".fedretina.half" / "part").mkdir(parents=True)  # of a process that was killed
    with filled_folder(out, "the clients") as half:
        (half / "part").mkdir()
        (half / "a.csv").write_text("whole")
    assert sorted(path.name for path in out.iterdir()) == ["a.csv", "part"]
    with pytest.raises(DataError, match="holds files already: choose a new or empty folder for the clients"):
        filled_folder(out, "the clients").__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        filled_folder(tmp_path / "file" / "out", "the clients").__enter__()


def test_a_locked_folder_is_the_owners_alone(tmp_path, rights):
    with folder_lock(tmp_path / "run" / "site-1", 0):
        assert stat.S_IMODE((tmp_path / "run" / "site-1").stat().st_mode) == 0o700
    (tmp_path / "open").mkdir()
    with folder_lock(tmp_path / "open", 0):  # one that its owner opened to others on purpose stays so
        assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o755
