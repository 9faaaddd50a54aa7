"""The audit log: a line that was changed, taken out, put in or cut off is found and named."""

import errno
import json
import os
import threading

import pytest

from fedretina import storage
from fedretina.errors import StateError
from fedretina.kit.audit import AUDIT, AuditLog

HEAD = "audit.head.json"


@pytest.fixture
def log(tmp_path):
    """A log of five events."""
    audit = AuditLog(tmp_path)
    audit.note("service started")
    for job in ("a", "b"):
        audit.note("job taken", job=job)
        audit.note("job ended", job=job)
    return audit


def lines(folder):
    return (folder / AUDIT).read_text().splitlines()


def put(folder, found):
    (folder / AUDIT).write_text("".join(line + "\n" for line in found))


def test_a_log_that_nobody_touched(log, tmp_path):
    found = log.verify()
    assert found.faults == ()
    assert [event["number"] for event in found.events] == [1, 2, 3, 4, 5]
    assert log.verify((5, found.digest[:12])).faults == ()
    assert (tmp_path / AUDIT).stat().st_mode & 0o077 == 0
    assert AuditLog(tmp_path / "none").verify() == ((), "0" * 64, (), False)


def change(found):
    found[2] = found[2].replace('"a"', '"x"')


def swap(found):
    found[2], found[3] = found[3], found[2]


def forge(found):
    forged = {**json.loads(found[2]), "job": "x"}
    found.insert(2, json.dumps({**forged, "number": 3}))


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (change, "event 3 is not the one after which event 4"),
        (lambda found: found.pop(2), "event 3 was taken out: event 4 follows event 2"),
        (lambda found: found.__delitem__(slice(1, 3)), "events 2 to 3 were taken out: event 4 follows event 1"),
        (lambda found: found.pop(0), "event 1 was taken out: event 2 follows event 0"),
        (swap, "event 3 was taken out: event 4 follows event 2"),
        (forge, "line 4 of the file is event 3, where event 4 belongs"),
        (lambda found: found.__setitem__(1, found[1][:-3]), "line 2 of the file is damaged"),
        (lambda found: found.pop(), "the end was cut off: the log had 5 events, and ends with event 4"),
        (lambda found: found.clear(), "the end was cut off: the log had 5 events, and ends with event 0"),
        (
            lambda found: found.__setitem__(4, found[4].replace('"b"', '"x"')),
            "event 5 was changed after it was written",
        ),
    ],
)
def test_what_was_done_to_it_is_named(log, tmp_path, tamper, said):
    found = lines(tmp_path)
    tamper(found)
    put(tmp_path, found)
    faults = log.verify().faults
    assert faults
    assert said in faults[0]


def test_a_log_that_was_written_anew_is_told_by_a_digest_that_was_noted(log, tmp_path):
    noted = 3, json.loads(lines(tmp_path)[3])["previous"]
    assert log.verify(noted).faults == ()
    (tmp_path / AUDIT).unlink()
    (tmp_path / HEAD).unlink()
    for job in "abcde":
        log.note("job taken", job=job)
    assert log.verify().faults == ()
    assert "the log was written anew" in log.verify(noted).faults[0]


def test_its_end_is_known_beside_it(log, tmp_path):
    head = (tmp_path / HEAD).read_text()
    log.note("service ended")
    (tmp_path / HEAD).write_text(head)
    assert log.verify().faults == ()  # the power went between the two files
    log.note("service started")
    (tmp_path / HEAD).write_text(head)
    assert "events 6 to 7 were added by another hand" in log.verify().faults[0]
    (tmp_path / HEAD).write_text("{")
    assert "is damaged" in log.verify().faults[0]
    (tmp_path / HEAD).unlink()
    assert "is gone" in log.verify().faults[0]


def test_a_power_cut_leaves_half_a_line_and_the_next_event_mends_it(log, tmp_path):
    with open(tmp_path / AUDIT, "a") as handle:
        handle.write('{"number": 6, "ev')
    assert log.verify().unfinished
    assert log.verify().faults == ()
    log.note("service started")
    assert not log.verify().unfinished
    assert len(log.verify().events) == 6


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_an_event_that_a_full_disk_did_not_keep_whole_accuses_nobody(log, tmp_path, monkeypatch, failing):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    for _ in range(2):
        with pytest.raises(StateError, match=r"No space left|the disk is full"):
            log.note("job taken")
        assert log.verify().faults == ()
    monkeypatch.undo()
    log.note("service started")
    found = log.verify()
    assert (found.faults, len(found.events)) == ((), 6)


def test_an_event_whose_end_has_its_name_but_not_yet_on_the_disk_stays(log, monkeypatch):
    """The rename was done, and what fails is to wait for the folder."""
    monkeypatch.setattr(storage, "sync", lambda path: path.is_dir() and full())

    def full():
        raise OSError(errno.EIO, "Input/output error")

    for _ in range(2):
        with pytest.raises(StateError, match="was not saved"):
            log.note("job taken")
    monkeypatch.undo()
    assert log.verify().faults == ()
    assert len(log.verify().events) == 7


def test_processes_that_write_at_once_make_one_chain(tmp_path):
    writers = [
        threading.Thread(target=lambda: [AuditLog(tmp_path).note("job taken") for _ in range(5)]) for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = AuditLog(tmp_path).verify()
    assert found.faults == ()
    assert len(found.events) == 20


def test_what_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / AUDIT).mkdir()
    with pytest.raises(StateError, match="cannot be written"):
        AuditLog(tmp_path).note("job taken")
    with pytest.raises(ValueError, match="of its own"):
        AuditLog(tmp_path / "other").note("job taken", time="now")


def test_a_sentence_stays_one_line(log):
    log.note("job refused", why="two\nlines\u2028three")
    assert log.verify().faults == ()
    assert log.verify().events[-1]["why"].count("\n") == 0
