"""The ledger: a line for all that leaves, whole lines only."""

import fcntl
import json
import os
import threading
from datetime import UTC, datetime

import pytest
import torch
from torch import nn

from fedretina.errors import StateError
from fedretina.exchange.ledger import Ledger
from fedretina.exchange.partition import partition
from fedretina.exchange.payload import Payload, Stamp, tensors_digest
from fedretina.settings.exchange import ExchangeSettings

NET = nn.ModuleDict({"encoder": nn.Linear(2, 3), "head": nn.Linear(3, 2)})
PARTS = partition(NET, ExchangeSettings())
PAYLOAD = Payload({"encoder.weight": torch.ones(3, 2)}, {"theta": 0.5}, Stamp("r", "train", 1, 0, "d"))


def test_a_line_says_what_leaves_and_what_the_policy_did(tmp_path):
    ledger = Ledger(tmp_path / "deep" / "ledger.jsonl")
    assert ledger.lines() == []
    ledger.note(PAYLOAD, PARTS)
    ledger.note(PAYLOAD, PARTS, {"scalar_digits": 3})
    first, second = ledger.lines()
    assert abs((datetime.now(UTC) - datetime.fromisoformat(first.pop("time"))).total_seconds()) < 600
    assert first == {
        "run": "r",
        "phase": "train",
        "round": 1,
        "attempt": 0,
        "tensors": {"encoder": 1},
        "scalars": {"theta": 0.5},
        "bytes": 24,
        "digest": tensors_digest(PAYLOAD.tensors),
    }
    assert second.pop("time")
    assert second == {**first, "scalar_digits": 3}


def test_a_line_waits_for_the_disk_once_and_the_first_for_its_name_too(tmp_path, monkeypatch):
    waits, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: waits.append(handle) or real(handle))
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.note(PAYLOAD, PARTS)
    assert len(waits) == 2
    ledger.note(PAYLOAD, PARTS)
    assert len(waits) == 3


def test_a_line_that_was_cut_off_is_no_line_and_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.note(PAYLOAD, PARTS)
    whole = path.read_text()
    path.write_text(whole + '{"run": "r", "pha')
    assert len(ledger.lines()) == 1
    ledger.note(PAYLOAD, PARTS)
    assert path.read_text() == whole * 2
    path.write_text('{"ru')
    assert ledger.lines() == []
    ledger.note(PAYLOAD, PARTS)
    assert [json.loads(line) for line in path.read_text().splitlines()] == ledger.lines()


def test_a_line_of_another_process_is_not_cut_off_with_what_was_unfinished(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).note_refusal("1", "one")
    theirs = path.read_text().replace("one", "theirs")
    with open(path, "a") as handle:  # another process, which found half a line
        handle.write('{"run": "r", "pha')
        handle.flush()
        fcntl.flock(handle, fcntl.LOCK_EX)
        writing = threading.Thread(target=Ledger(path).note_refusal, args=("2", "ours"), daemon=True)
        writing.start()
        writing.join(0.5)
        waited = writing.is_alive()
        handle.truncate(path.read_text().rindex("\n") + 1)
        handle.write(theirs)
    writing.join()
    assert waited
    assert [line["words"] for line in Ledger(path).lines()] == ["one", "theirs", "ours"]


def test_a_damaged_ledger_is_not_passed_over(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("no json\n{}\n")
    with pytest.raises(StateError, match="cannot be read"):
        Ledger(path).lines()
    with pytest.raises(StateError, match="nothing leaves"):
        Ledger(path / "below-a-file").note(PAYLOAD, PARTS)
