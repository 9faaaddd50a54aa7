"""A file handed over between processes of one user on one machine; when it is not, the bytes are sent."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.apis.fl_context import FLContext

from fedretina.flare import handover, plain_bytes
from fedretina.flare.handover import FOLDER, HANDOVER, Handover, OpenFile, handover_of
from fedretina.flare.plain_bytes import Arriving, Leaving, in_one_buffer, register
from fedretina.settings.site import SiteSettings

PARTS = [np.arange(200, dtype=np.uint8), np.arange(100, dtype=np.uint8)]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / FOLDER


@pytest.fixture
def process():
    """This process's decomposer, put back afterwards."""
    found = register()
    yield found
    found.handover = found.arrivals = None


def put(held):
    """A file of a holder that stays; its name."""
    buffer = held.put(PARTS)
    return buffer, held.name(buffer)


def test_what_one_process_puts_the_other_takes_and_it_goes_with_its_last_array(folder):
    held = Handover(folder)
    buffer, name = put(held)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / name).stat().st_mode & 0o777 == 0o600
    taken = Handover(folder).take(name, 300)
    assert np.array_equal(taken, np.concatenate(PARTS))
    assert held.path(taken).samefile(held.path(buffer))
    assert held.path(np.zeros(3)) is None
    taken[:] = 7  # what is written stays with who writes
    assert np.array_equal(buffer, np.concatenate(PARTS))
    part = buffer[10:20].view(np.uint16)
    del buffer
    assert (folder / name).exists()
    assert part[0] == 10 + 256 * 11
    del part
    assert os.listdir(folder) == []
    assert set(taken.tolist()) == {7}  # who has taken it keeps it


@pytest.mark.parametrize("name", ["../secret", "secret", "", "/etc/hostname", "1-1-" + 32 * "g", "1-1-" + 32 * "0"])
@pytest.mark.attack(
    "a hostile server",
    "a name of a file of the site's in place of tensors that it would hand over",
    "only names that these processes give to their own files, in their own folder, are looked at",
)
def test_no_other_name_is_opened(folder, name):
    held = Handover(folder)
    (folder.parent / "secret").write_bytes(bytes(300))
    assert held.take(name, 300) is None


def test_a_link_a_folder_a_pipe_another_size_and_what_others_may_read_are_not_taken(folder):
    held, name = Handover(folder), f"1-{os.getpid()}-{32 * '0'}"
    secret = folder.parent / "secret"
    secret.write_bytes(bytes(300))
    secret.chmod(0o600)
    path = folder / name
    path.symlink_to(secret)
    assert held.take(name, 300) is None
    path.unlink()
    path.mkdir(mode=0o700)
    assert held.take(name, path.stat().st_size) is None
    path.rmdir()
    os.mkfifo(path, 0o600)
    assert held.take(name, 300) is None
    path.unlink()
    secret.rename(path)
    assert held.take(name, 299) is None
    assert held.take(name, 0) is None
    assert held.take(name, 300) is not None
    path.chmod(0o640)
    assert held.take(name, 300) is None
    path.chmod(0o600)
    if os.geteuid() == 0:  # nobody else can give a file away
        os.chown(path, 12345, 12345)
        assert held.take(name, 300) is None


def test_a_folder_that_others_may_look_into_or_that_is_a_link_is_not_used(folder):
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError):
        Handover(folder)
    link = folder.parent / "link"
    link.symlink_to(folder)
    with pytest.raises(OSError, match=r"link"):
        Handover(link)


def test_another_users_folder_is_not_used(folder, monkeypatch):
    Handover(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError):
        Handover(folder)


@pytest.mark.parametrize("other", ["boot", "container", "folder"])
def test_another_boot_a_container_and_another_folder_are_elsewhere(folder, monkeypatch, other):
    here = Handover(folder).here
    assert Handover(folder).here == here
    if other == "folder":
        assert Handover(folder.parent / "other").here != here
    elif other == "boot":
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: "another boot")
        assert Handover(folder).here != here
    else:
        real = os.stat
        namespaces = SimpleNamespace(st_ino=1)
        monkeypatch.setattr(os, "stat", lambda path, **more: namespaces if "ns" in str(path) else real(path, **more))
        assert Handover(folder).here != here


def test_what_a_killed_process_left_is_erased(folder):
    code = (
        "import sys, os, numpy as np; from pathlib import Path; from fedretina.flare.handover import Handover;"
        "held = Handover(Path(sys.argv[1])).put([np.zeros(9, np.uint8)]); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    assert len(os.listdir(folder)) == 1
    kept = Handover(folder).put(PARTS)
    assert os.listdir(folder) == [Handover.name(kept)]


def test_what_a_process_of_another_container_may_still_hold_stays(folder):
    """A number without a process here may be one of another view of processes, over the same folder."""
    Handover(folder)
    mine, gone = os.stat("/proc/self/ns/pid").st_ino, 2**31 - 1
    for view in (mine, mine + 1):
        (folder / f"{view}-{gone}-{32 * '0'}").touch()
    Handover(folder)
    assert os.listdir(folder) == [f"{mine + 1}-{gone}-{32 * '0'}"]


def big():
    return {"a": np.arange(2**19, dtype=np.float32), "b": np.arange(5, dtype=np.int64)}


def test_a_message_in_a_file_names_it_and_one_that_was_changed_does_not(folder, process):
    process.handover = Handover(folder)
    arrays = in_one_buffer(big())
    assert [Leaving(list(arrays.values())).file] == os.listdir(folder)
    assert Leaving([arrays["a"]]).file is None
    assert Leaving([arrays["a"], arrays["b"].copy()]).file is None
    assert all(np.array_equal(arrays[key], array) for key, array in big().items())
    assert Leaving(list(in_one_buffer({"a": np.zeros(3)}).values())).file is None  # not worth a file


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_hands_nothing_over_and_leaves_nothing_there(folder, process, monkeypatch):
    process.handover = Handover(folder)
    monkeypatch.setattr(OpenFile, "write", full)
    arrays = in_one_buffer(big())
    assert Leaving(list(arrays.values())).file is None
    assert all(np.array_equal(arrays[key], array) for key, array in big().items())
    assert os.listdir(folder) == []


@pytest.mark.parametrize("room", [0, 2**20, 2**22])
def test_what_arrives_is_written_as_it_comes_and_goes_on_in_memory_on_a_full_disk(folder, monkeypatch, room):
    sent = np.random.default_rng(0).integers(0, 256, 2**22, np.uint8)
    real = OpenFile.write

    def write(self, data):
        if self._size + len(data) > room:
            full()
        real(self, data)

    monkeypatch.setattr(OpenFile, "write", write)
    arriving = Arriving(sent.size, Handover(folder))
    for begin in range(0, sent.size, 2**20):
        end = begin + 2**20
        arriving.consume("r", {"at": end}, sent[begin:end].tobytes())
    assert len(os.listdir(folder)) == (room >= sent.size)
    arriving.download_completed("r")
    assert arriving.complete
    assert isinstance(arriving.buffer, np.memmap) == (room >= sent.size)
    assert np.array_equal(arriving.buffer, sent)
    arriving.buffer[0] = 0
    del arriving
    assert os.listdir(folder) == []


def test_files_are_handed_over_in_the_simulator_and_where_the_environment_says_so(tmp_path, monkeypatch):
    settings, context = SiteSettings(state_root=str(tmp_path)), FLContext()
    context.set_prop("__run_num__", "0f9c1f2e-3d9a-4f0e-9a39-6f6b2d0c8a11", private=False)
    context.set_prop("__identity_name__", "site-1", private=False)
    assert handover_of(context, settings) is None
    assert os.listdir(tmp_path) == []
    monkeypatch.setenv(HANDOVER, str(tmp_path / "named"))
    assert handover_of(context, settings) is not None
    assert os.listdir(tmp_path) == ["named"]
    (tmp_path / "named").rmdir()
    monkeypatch.delenv(HANDOVER)
    monkeypatch.setattr(handover, "simulated", lambda _: True)
    assert handover_of(context, settings) is not None
    assert os.listdir(tmp_path) == [FOLDER]
    (tmp_path / FOLDER).chmod(0o755)
    assert handover_of(context, settings) is None


def test_arrays_travel_in_memory_where_nothing_is_handed_over(process):
    assert plain_bytes.leaving(big())["a"].base is not None
    assert Leaving(list(plain_bytes.leaving(big()).values())).file is None
