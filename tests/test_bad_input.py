"""What goes wrong at one site or at the server gets a sentence, and nothing half done stays."""

import dataclasses
import errno
import os

import pytest
import torch

from fedretina.aggregation.coordinator import Coordinator
from fedretina.errors import QuorumError, RefusedError, StateError, TrainingError
from fedretina.exchange.payload import Payload
from fedretina.local.site import Site
from fedretina.local.site_state import Snapshot
from fedretina.local.trainer import LocalTrainer
from fedretina.loop import run_loop
from fedretina.settings.plan import Plan


def test_fewer_images_than_a_batch_stops_that_site_alone(tiny, phantoms, tmp_path):
    experiment = tiny(phantom_images=60, training={"batch_size": 32}, phases=[{"name": "train", "rounds": 1}])
    results = run_loop(experiment, phantoms(experiment, "site-1", "site-5"), tmp_path, "a")
    assert set(results["sites"]) == {"site-1"}
    assert "fewer than one batch of 32" in results["steps"][0]["refused"]["site-5"]
    assert "no update of this site was accepted" in results["without_result"]["site-5"]
    assert not list((tmp_path / "a" / "site-5").glob("*.safetensors"))


def test_a_loss_that_is_not_finite_keeps_nothing(tiny, phantoms, tmp_path):
    experiment = tiny()
    trainer = LocalTrainer(experiment, phantoms(experiment, "site-1")["site-1"])
    start = trainer.initial()
    broken = Snapshot(
        {
            key: torch.full_like(value, torch.nan) if value.is_floating_point() else value
            for key, value in start.tensors.items()
        },
        {},
    )
    coordinator = Coordinator(experiment, "a", tmp_path / "a" / "server")
    with pytest.raises(TrainingError, match=r"loss became nan in train-0000"):
        trainer.train(coordinator.down(), broken, Plan.of(experiment)[0])


def test_one_poisoned_update_is_refused_and_the_others_go_on(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    data = phantoms(experiment, "site-1", "site-2")
    coordinator = Coordinator(experiment, "a", tmp_path / "a" / "server")
    hosts = {name: Site(experiment, data[name], tmp_path / "a" / name) for name in data}
    coordinator.begin(["site-1", "site-2", "site-3"])
    good = hosts["site-1"].answer(coordinator.order("site-1"), coordinator.down())
    bad = hosts["site-2"].answer(coordinator.order("site-2"), coordinator.down())
    key = next(iter(bad.tensors))
    poisoned = Payload({**bad.tensors, key: torch.full_like(bad.tensors[key], torch.nan)}, bad.scalars, bad.stamp)
    coordinator.accept("site-1", good)
    with pytest.raises(RefusedError, match="not finite"):
        coordinator.accept("site-2", poisoned)
    with pytest.raises(RefusedError, match="answered this step before"):
        coordinator.accept("site-1", good)
    record = coordinator.close()
    assert set(record["weights"]) == {"site-1"}
    assert "not finite" in record["refused"]["site-2"]
    assert coordinator.begin(["site-1", "site-2", "site-3"]) is None
    assert coordinator.order("site-1").accepted == 0
    assert coordinator.order("site-2").accepted is None


def test_below_the_quorum_a_step_is_not_closed_and_can_be_begun_again(tiny, phantoms, tmp_path):
    experiment = tiny(quorum=2, phases=[{"name": "train", "rounds": 1}])
    data = phantoms(experiment, "site-1", "site-2")
    coordinator = Coordinator(experiment, "a", tmp_path / "a" / "server")
    hosts = {name: Site(experiment, data[name], tmp_path / "a" / name) for name in data}
    coordinator.begin(["site-1", "site-2", "site-3"])
    late = hosts["site-2"].answer(coordinator.order("site-2"), coordinator.down())
    coordinator.accept("site-1", hosts["site-1"].answer(coordinator.order("site-1"), coordinator.down()))
    coordinator.refuse("site-2", "it did not answer in time.")
    with pytest.raises(QuorumError, match=r"1 update was accepted, the quorum is 2 .*did not answer in time"):
        coordinator.close()
    assert coordinator.done == 0
    coordinator.begin(["site-1", "site-2", "site-3"])
    with pytest.raises(RefusedError, match="attempt 0, expected train round 0 attempt 1"):
        coordinator.accept("site-2", late)
    for name, host in hosts.items():
        coordinator.accept(name, host.answer(coordinator.order(name), coordinator.down()))
    coordinator.close()
    assert coordinator.done == 1


@pytest.mark.attack(
    "a hostile server",
    "an order of other settings than the job's",
    "refused before anything is done",
)
def test_orders_of_other_settings_are_refused_before_anything_is_done(tiny, phantoms, tmp_path):
    experiment, other = tiny(), tiny(seed=9)
    site = Site(experiment, phantoms(experiment, "site-1")["site-1"], tmp_path / "a" / "site-1")
    coordinator = Coordinator(other, "a", tmp_path / "a" / "server")
    coordinator.begin(["site-1", "site-2", "site-3"])
    with pytest.raises(RefusedError, match="disagree on settings"):
        site.answer(coordinator.order("site-1"), coordinator.down())
    assert not (tmp_path / "a" / "site-1").exists()


def test_a_full_disk_at_the_server_keeps_the_finished_rounds(tiny, phantoms, tmp_path, monkeypatch):
    experiment = tiny()
    data = phantoms(experiment, "site-1")
    expected = run_loop(experiment, data, tmp_path, "whole")
    real = os.replace

    def full(source, target):
        if str(target).endswith("server/train-0001.safetensors"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StateError, match="the disk is full"):
        run_loop(experiment, data, tmp_path, "cut")
    assert Coordinator(experiment, "cut", tmp_path / "cut" / "server").done == 1
    monkeypatch.undo()
    assert run_loop(experiment, data, tmp_path, "cut")["model_digest"] == expected["model_digest"]


def test_updates_that_the_server_cannot_store_are_not_asked_for_again(tiny, phantoms, tmp_path, monkeypatch):
    experiment = tiny(quorum=2)
    data = phantoms(experiment, "site-1", "site-2")
    coordinator = Coordinator(experiment, "a", tmp_path / "a" / "server")
    hosts = {name: Site(experiment, data[name], tmp_path / "a" / name) for name in data}
    coordinator.begin(hosts)
    answers = {name: host.answer(coordinator.order(name), coordinator.down(name)) for name, host in hosts.items()}
    real = os.replace

    def full(source, target):
        if "spool/site-2" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    coordinator.accept("site-1", answers["site-1"])
    with pytest.raises(StateError, match="the disk is full"):
        coordinator.accept("site-2", answers["site-2"])
    with pytest.raises(StateError, match="the disk is full"):  # not below the quorum, which would be tried again
        coordinator.close()
    monkeypatch.undo()
    coordinator.begin(hosts)
    for name, host in hosts.items():
        coordinator.accept(name, host.answer(coordinator.order(name), coordinator.down(name)))
    assert coordinator.close()["refused"] == {}


def test_a_run_of_other_settings_or_version_is_not_continued(tiny, phantoms, tmp_path, monkeypatch):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    run_loop(experiment, phantoms(experiment, "site-1"), tmp_path, "a")
    with pytest.raises(StateError, match="other settings or another version"):
        Coordinator(tiny(seed=8), "a", tmp_path / "a" / "server")
    monkeypatch.setattr("fedretina.settings.experiment.__version__", "9.9")
    with pytest.raises(StateError, match="other settings or another version"):
        Coordinator(experiment, "a", tmp_path / "a" / "server")


def test_one_class_in_validation_leaves_the_choice_to_the_others(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 2}])
    data = phantoms(experiment, "site-1", "site-2")
    whole = data["site-1"]

    def one_class(name):
        found = whole.split(name)
        return found._replace(labels=torch.zeros_like(found.labels)) if name == "val" else found

    data["site-1"] = dataclasses.replace(whole, _read=one_class)
    results = run_loop(experiment, data, tmp_path, "a")
    for entry in results["validation"].values():
        assert set(entry["auc"]) == {"site-2"}
    assert "val_auc" not in results["steps"][1]["scalars"]["site-1"]
