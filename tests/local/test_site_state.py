import pytest
import torch

from fedretina.errors import StateError
from fedretina.local.site_state import SiteState
from fedretina.local.snapshot import Snapshot


def state(folder, digest="d1"):
    return SiteState(folder, digest, lambda step: f"train-{step:04d}")


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


def test_only_what_may_be_asked_for_is_kept(tmp_path):
    for step in range(6):
        site = state(tmp_path)
        site.open(step - 1 if step else None, 1 if step > 2 else None)
        site.stage(step, snapshot(step))
    site = state(tmp_path)
    site.open(5, 1)
    assert value(site.kept(1)) == 1
    assert value(site.kept(9)) == 5
    site.open(5, 4)
    assert value(site.kept(4)) == 4
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        "train-0004.safetensors",
        "train-0005.safetensors",
    ]


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
