import copy
import json

import numpy as np
import pytest
import torch

from fedretina.errors import StateError, TrainingError
from fedretina.evaluation.model_selection import best_step
from fedretina.local.site_state import STATE, SiteState, Snapshot, read_history


def state(folder, digest="d1", listed="one"):
    return SiteState(folder, digest, lambda step: f"train-{step:04d}", listed)


def snapshot(value):
    return Snapshot({"h": torch.full((2,), float(value))}, {"theta": {"value": value}})


def value(found):
    return None if found is None else found.tensors["h"][0].item()


def test_a_staged_round_counts_only_when_the_server_accepted_it(tmp_path):
    site = state(tmp_path)
    assert site.open(None, None) is None
    site.stage(0, snapshot(10))
    assert value(state(tmp_path).open(0, None)) == 10
    site = state(tmp_path)
    site.stage(1, snapshot(11))
    assert value(state(tmp_path).open(0, None)) == 10  # refused or late: the round starts from its predecessor
    assert state(tmp_path).kept(5).record["theta"]["value"] == 10


def test_an_order_sent_twice_opens_the_same_state(tmp_path):
    site = state(tmp_path)
    site.stage(0, snapshot(1))
    first, second = state(tmp_path).open(0, None), state(tmp_path).open(0, None)
    assert value(first) == value(second) == 1


@pytest.mark.parametrize("left", ["", "\0" * 40], ids=["nothing", "zeros"])
def test_a_power_cut_before_the_first_round_costs_a_site_nothing(tmp_path, left):
    """The record of its first order has a new name and was not waited for: a cut may leave the name alone."""
    state(tmp_path).open(None, None)
    (tmp_path / STATE).write_text(left)
    assert read_history(tmp_path).steps() == []
    site = state(tmp_path)
    assert site.open(None, None) is None
    site.stage(0, snapshot(10))
    assert value(state(tmp_path).open(0, None)) == 10


def test_a_power_cut_after_a_run_went_back_leaves_what_was_set_aside(tmp_path):
    site = state(tmp_path)
    site.stage(0, snapshot(10))
    for _ in range(2):
        state(tmp_path).go_back(0, "mark", 0)
        (tmp_path / STATE).write_text("")
    assert state(tmp_path).open(None, None) is None
    assert json.loads((tmp_path / "dropped-mark" / STATE).read_text())["staged"] == 0


def test_a_record_that_cannot_be_read_is_told_where_rounds_are_kept(tmp_path):
    site = state(tmp_path)
    site.stage(0, snapshot(10))
    file = tmp_path / "train-0000.safetensors"
    for damaged in (tmp_path / STATE, file):
        damaged.write_bytes(b"")
    with pytest.raises(StateError, match=r"state\.json cannot be read"):
        state(tmp_path)
    file.unlink()
    with pytest.raises(StateError, match="does not hold the state after train-0000"):
        state(tmp_path).open(0, None)


def files(folder):
    return sorted(int(path.stem.removeprefix("train-")) for path in folder.glob("*.safetensors"))


def test_only_what_may_be_asked_for_is_kept(tmp_path):
    for step in range(8):
        site = state(tmp_path)
        site.open(step - 1 if step else None, 1 if step > 2 else None)
        site.stage(step, snapshot(step))
    site = state(tmp_path)
    site.open(7, 1)
    assert value(site.kept(1)) == 1
    assert value(site.kept(9)) == 7
    site.keep()
    assert files(tmp_path) == [1, 3, 4, 5, 6, 7]
    for step in (8, 9, 10, 11):
        site.stage(step, snapshot(step))
        site.open(step, step - 1)
    site.keep()
    assert files(tmp_path) == [1, 7, 8, 9, 10, 11]  # 1 was the best when 7 was the last
    site.stage(12, snapshot(12))
    site.open(12, 7)
    site.keep()
    assert files(tmp_path) == [7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("best", [0, None])
def test_a_long_run_does_not_fill_the_disk(tmp_path, best):
    for step in range(60):
        site = state(tmp_path)
        site.open(step - 1 if step else None, best if step > 1 else None)
        site.stage(step, snapshot(step))
        assert len(files(tmp_path)) <= 7
    site = state(tmp_path)
    site.open(59, 59 if best is None else best)  # no site could measure any round: the last is as good as any
    assert value(site.kept(59 if best is None else best)) == (59 if best is None else best)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_may_be_asked_is_answered(tmp_path, seed):
    """A server as it chooses rounds, sites that come and go, and backups of the server some rounds old."""
    rng = np.random.default_rng(seed)
    window, sites = int(rng.integers(1, 4)), ("mine", "b", "c")
    dull = rng.random() < 0.3  # the first round stays the best
    records, counted, backups = [], [], []  # of the server; the steps of this site that it accepted
    training = range(40)

    def asked():
        best, last = best_step(records, training, window), counted[-1] if counted else None
        site = state(tmp_path)
        found = site.open(last, best)
        assert value(found) == last
        belongs = [step for step in counted if best is not None and step <= best]
        if best is not None:
            assert value(site.kept(best)) == (belongs[-1] if belongs else None)
        return site

    restored = 0
    while len(records) < 40:
        before = best_step(records, training, window)
        backups.append(copy.deepcopy((records, counted)))
        there = rng.random() < 0.85
        if there:
            site = asked()
            for _ in range(int(rng.integers(1, 3))):  # sometimes the order comes again
                site.stage(len(records), snapshot(len(records)))
        auc = 1 / (1 + len(records)) if dull else rng.random()
        scalars = {name: {"val_auc": auc} for name in sites if rng.random() < 0.9}
        if there and rng.random() < 0.9:
            counted.append(len(records))
        records.append({"scalars": scalars})
        now = best_step(records, training, window)
        assert now in (before, len(records) - 2)  # what the state relies on
        assert len(files(tmp_path)) <= 8
        old = [backup for backup in backups if backup[1] and backup[1][-1] in counted[-4:]]
        if old and restored < 5 and rng.random() < 0.2:
            (records, counted), backups = copy.deepcopy(old[0]), []
            restored += 1
            asked()
    asked()
    assert restored


def test_a_server_that_is_further_behind_is_refused(tmp_path):
    for step in range(8):
        site = state(tmp_path)
        site.open(step - 1 if step else None, 1 if step > 2 else None)
        site.stage(step, snapshot(step))
    site = state(tmp_path)
    site.open(6, 1)
    site.keep()
    for lost in (0, 1, 2):  # 1 and 2 are here still, but perhaps not what their own best needs
        with pytest.raises(StateError, match=f"does not hold the state after train-000{lost}"):
            state(tmp_path).open(lost, None)
    assert files(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert value(state(tmp_path).open(3, 1)) == 3
    with pytest.raises(StateError, match="does not hold the state after train-0002"):
        state(tmp_path).open(2, 1)


def test_other_data_are_refused_once_a_round_counts(tmp_path):
    site = state(tmp_path)
    site.open(None, None)
    site.stage(0, snapshot(0))
    mended = state(tmp_path, listed="two")  # the first round was refused: nothing was learned from the old list
    mended.open(None, None)
    mended.require_data(0, accept=False)
    mended.stage(0, snapshot(0))
    again = state(tmp_path, listed="two")
    again.open(0, None)
    again.require_data(1, accept=False)
    again.stage(1, snapshot(1))
    other = state(tmp_path, listed="one")
    other.open(1, None)
    with pytest.raises(TrainingError, match=r"put the old list back, or start a new run"):
        other.require_data(2, accept=False)
    back = state(tmp_path, listed="two")
    back.open(1, None)
    back.require_data(2, accept=False)
    assert back.data_changes == []


def test_a_site_may_accept_other_data_and_remembers_when(tmp_path):
    site = state(tmp_path)
    site.open(None, None)
    site.stage(0, snapshot(0))
    for _ in range(2):  # sent twice, noted once
        other = state(tmp_path, listed="two")
        other.open(0, None)
        other.require_data(1, accept=True)
    assert state(tmp_path, listed="two").data_changes == ["train-0001"]
    other.stage(1, snapshot(1))
    last = state(tmp_path, listed="three")
    last.open(1, 0)
    last.require_data(2, accept=True)
    assert last.data_changes == ["train-0001", "train-0002"]


def test_a_site_that_missed_the_best_round_keeps_its_last_one_before_it(tmp_path):
    site = state(tmp_path)
    site.stage(0, snapshot(0))
    site.open(0, None)
    site.stage(3, snapshot(3))
    site.open(3, 2)
    assert value(site.kept(2)) == 0


def test_missing_state_is_told(tmp_path):
    with pytest.raises(StateError, match="does not hold the state after train-0004"):
        state(tmp_path).open(4, None)


def test_a_server_that_forgot_the_run_erases_nothing(tmp_path):
    site = state(tmp_path)
    site.stage(0, snapshot(0))
    site.open(0, None)
    with pytest.raises(StateError, match="the server knows of none"):
        state(tmp_path).open(None, None)
    assert (tmp_path / "train-0000.safetensors").exists()


def test_state_of_another_version_is_refused(tmp_path):
    site = state(tmp_path)
    site.stage(0, snapshot(0))
    with pytest.raises(StateError, match="other settings or another version"):
        state(tmp_path, "d2")
