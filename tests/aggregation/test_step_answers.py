import pytest
import torch

from fedretina.aggregation.spool import StepAnswers
from fedretina.errors import QuorumError, StateError
from fedretina.exchange.payload import Payload, Stamp

STAMP = Stamp("run", "train", 0, 0, "0" * 64)


def payload(tensors=None, **scalars):
    return Payload(tensors or {}, scalars, STAMP)


def test_the_record_holds_sites_and_scalars_in_alphabetical_order(tmp_path):
    answers = StepAnswers(tmp_path / "spool")
    answers.refuse("c", "too late.")
    answers.put("b", payload({"w": torch.zeros(5)}, theta=0.5, loss=2))
    answers.put("a", payload(loss=1))
    assert answers.record() == {
        "scalars": {"a": {"loss": 1.0}, "b": {"loss": 2.0, "theta": 0.5}},
        "refused": {"c": "too late."},
        "bytes_up": {"a": 0, "b": 20},
    }
    assert list(answers.record()["scalars"]) == ["a", "b"]
    assert list(answers.scalars["b"]) == ["loss", "theta"]
    assert torch.equal(answers.spool.tensor("b", "w"), torch.zeros(5))
    assert not list((tmp_path / "spool").glob("a.*"))  # nothing came that a disk would have to hold


def test_an_answer_outweighs_a_refusal_whichever_came_first(tmp_path):
    answers = StepAnswers(tmp_path / "spool")
    answers.refuse("a", "out of range.")
    answers.put("a", payload())
    answers.refuse("a", "has answered before.")
    assert answers.refused == {}


def test_a_step_that_was_closed_is_gone_on_with(tmp_path):
    answers = StepAnswers(tmp_path / "spool")
    record = {"scalars": {"b": {"auc": 0.5}}, "refused": {"a": "too late.", "c": "away."}, "bytes_up": {"b": 0}}
    answers.keep(record, ("a",))
    assert answers.refused == {"c": "away."}
    answers.put("a", payload(auc=1))
    assert answers.record() == {
        "scalars": {"a": {"auc": 1.0}, "b": {"auc": 0.5}},
        "refused": {"c": "away."},
        "bytes_up": {"a": 0, "b": 0},
    }
    assert list(record["scalars"]) == ["b"]  # what was stored is not written into


def test_too_few_answers_are_named(tmp_path):
    answers = StepAnswers(tmp_path / "spool")
    with pytest.raises(QuorumError, match=r"train-0003: 0 updates were accepted, the quorum is 1 \(no answer\)"):
        answers.require(1, "train-0003")
    answers.put("a", payload())
    answers.require(1, "train-0003")
    answers.refuse("c", "late")
    answers.refuse("b", "odd")
    with pytest.raises(QuorumError, match=r"1 update was accepted, the quorum is 2 \(b: odd; c: late\)"):
        answers.require(2, "train-0003")


def test_a_full_disk_is_told_before_a_missed_quorum(tmp_path, monkeypatch):
    def full(*_):
        raise StateError("the disk is full")

    answers = StepAnswers(tmp_path / "spool")
    answers.put("a", payload({"w": torch.zeros(1)}))
    monkeypatch.setattr(answers.spool, "put", full)
    with pytest.raises(StateError, match="disk is full"):
        answers.put("b", payload({"w": torch.zeros(1)}))
    assert list(answers.scalars) == ["a"]
    answers.require(1, "train-0000")  # enough without it
    with pytest.raises(StateError, match="disk is full"):
        answers.require(2, "train-0000")


def test_a_new_attempt_finds_nothing_of_the_old_one(tmp_path):
    StepAnswers(tmp_path / "spool").put("a", payload({"w": torch.zeros(1)}))
    StepAnswers(tmp_path / "spool")
    assert list((tmp_path / "spool").iterdir()) == []
