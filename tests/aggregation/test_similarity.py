import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from fedretina.aggregation.coordinator import Coordinator
from fedretina.aggregation.run_store import RunStore
from fedretina.aggregation.weights import among, distance, similarity_weights
from fedretina.errors import StateError
from fedretina.exchange.partition import MEAN, STATISTIC, VARIANCE, partition_of
from fedretina.local.site import Site
from fedretina.local.trainer import LocalTrainer
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.settings.exchange import Kind
from fedretina.settings.experiment import Experiment


def statistics(*layers):
    found = {}
    for number, (mean, variance) in enumerate(layers):
        found[f"{STATISTIC}l{number}{MEAN}"] = torch.tensor(mean)
        found[f"{STATISTIC}l{number}{VARIANCE}"] = torch.tensor(variance)
    return found


def test_the_distance_is_the_sum_over_layers_of_two_gaussians():
    one = statistics(([1.0, 2.0], [4.0, 9.0]), ([0.0], [1.0]))
    other = statistics(([0.0, 0.0], [1.0, 1.0]), ([3.0], [25.0]))
    expected = math.sqrt(1 + 4 + 1 + 4) + math.sqrt(9 + 16)
    assert distance(one, other) == pytest.approx(expected) == pytest.approx(distance(other, one))
    assert distance(one, one) == 0


def test_near_sites_weigh_more_and_every_row_sums_to_one():
    table = similarity_weights(
        {"a": statistics(([0.0], [1.0])), "b": statistics(([1.0], [1.0])), "c": statistics(([4.0], [1.0]))}, 0.5
    )
    assert table["a"] == pytest.approx({"a": 0.5, "b": 0.5 * 4 / 5, "c": 0.5 * 1 / 5})
    assert all(sum(row.values()) == pytest.approx(1) for row in table.values())


def test_equal_sites_share_alone_and_a_lone_site_weighs_itself():
    same, far = statistics(([0.0], [1.0])), statistics(([9.0], [1.0]))
    table = similarity_weights({"a": same, "b": same, "c": far}, 0.4)
    assert table["a"] == {"a": 0.4, "b": 0.6, "c": 0.0}
    assert similarity_weights({"a": same}, 0.5) == {"a": {"a": 1.0}}


def test_weights_among_those_who_answered_keep_their_proportion():
    assert among({"a": 0.5, "b": 0.4, "c": 0.1}, ["b", "c"]) == pytest.approx({"b": 0.8, "c": 0.2})
    assert among({}, ["b", "c"]) == {"b": 0.5, "c": 0.5}  # a site that missed the preparation


def test_a_site_sends_mean_and_variance_of_what_enters_each_norm(tiny, phantoms):
    experiment: Experiment = tiny(row="fedap", network={"encoder": "resnet18"})
    data = phantoms(experiment, "site-2")["site-2"]
    trainer = LocalTrainer(experiment, data)
    start = trainer.model.net.state_dict()
    shared = {key: start[key].clone() for key in trainer.partition.shared}
    found = trainer.statistics(shared)
    assert set(found) == set(trainer.partition.sent("prepare"))
    # The stem's norm, from its definition: the input is the first convolution's map over all training images.
    images = data.split("train").images.float() / 255
    stem = trainer.model.net.encoder.stages[0]
    maps = stem[0](trainer.model.net.normalised(images)).detach().double().transpose(0, 1).flatten(1)
    name = next(key for key in sorted(found) if ".stages.0." in key).rpartition(".")[0]
    torch.testing.assert_close(found[f"{name}{MEAN}"], maps.mean(1).float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[f"{name}{VARIANCE}"], maps.var(1, unbiased=False).float(), rtol=1e-4, atol=1e-5)


def test_statistics_are_declared_as_such_and_never_asked_for_elsewhere(tiny):
    experiment = tiny(row="fedap")
    parts = partition_of(experiment, build_on_meta(experiment.network))
    assert {parts.kinds[key] for key in parts.sent("prepare")} == {Kind.STATISTIC}
    assert not set(parts.sent("train")) & set(parts.sent("prepare"))
    assert partition_of(tiny(row="fedbn"), build_on_meta(experiment.network)).sent("prepare") == ()


@pytest.mark.attack(
    "a hostile server",
    "read what few patients' images look like off the statistics of a site's activations",
    "a site whose training images have fewer patients than min_count sends no such statistics",
)
@pytest.mark.parametrize("few", [("site-3",), ("site-1", "site-2", "site-3")], ids=["one", "all"])
def test_no_statistics_of_few_training_patients_leave(tiny, phantoms, tmp_path, caplog, few):
    experiment = tiny(row="fedap", phases=[{"name": "train", "rounds": 1}], quorum=3)
    data = phantoms(experiment)
    patients = len(set(data["site-1"].split("train").patients))
    data = {
        name: replace(site, min_count=1 + len(set(site.split("train").patients)) if name in few else 1)
        for name, site in data.items()
    }
    assert data["site-1"].min_count in (1, patients + 1)
    first, trained = run_loop(experiment, data, tmp_path, "r")["steps"][:2]
    assert [name for name in data if first["bytes_up"][name] == 0] == list(few)
    assert sorted(first["scalars"]) == sorted(data)  # who tells nothing has answered: the quorum is kept
    telling = [name for name in data if name not in few]
    assert {site: sorted(weights) for site, weights in first["similarity"].items()} == dict.fromkeys(telling, telling)
    for site in few:
        assert f"{site}: fewer patients stand behind the training images" in caplog.text
        assert trained["mixing"][site] == pytest.approx(dict.fromkeys(data, 1 / 3))  # the plain mean
    for site in telling:
        assert trained["mixing"][site] == pytest.approx({**first["similarity"][site], **dict.fromkeys(few, 0.0)})


@pytest.mark.slow
def test_each_site_is_sent_a_mixture_of_its_own_whatever_the_interruptions(tiny, phantoms, tmp_path):
    experiment = tiny(row="fedap", phases=[{"name": "train", "rounds": 2}])
    data = phantoms(experiment)
    results = run_loop(experiment, data, tmp_path, "whole")
    first, *trained = results["steps"][:3]
    assert first["task"] == "prepare"
    for record in trained:
        assert len(set(record["digests"].values())) == 3
        for site, weights in first["similarity"].items():
            assert record["mixing"][site] == pytest.approx(weights)
    while True:
        coordinator = Coordinator(experiment, "whole", tmp_path / "parts" / "server")
        if coordinator.done == len(coordinator.plan):
            break
        coordinator.begin(data)
        for site in coordinator.asked:
            host = Site(experiment, data[site], tmp_path / "parts" / site)
            coordinator.accept(site, host.handle(coordinator.order(site), coordinator.down(site)))
        coordinator.close()
    assert [r.get("digests") for r in coordinator.records[:-1]] == [r.get("digests") for r in results["steps"]]
    whole, parts = (sorted(p.name for p in (tmp_path / run / "server").glob("*.*")) for run in ("whole", "parts"))
    assert whole == parts
    assert sum("@" in name for name in whole) <= 2 * 3  # the best and the last model, a file per site


def test_a_model_a_site_and_a_server_half_exclude_each_other(tiny):
    with pytest.raises(Exception, match="similarity"):
        tiny(row="fedap", correction={"name": "scaffold"})
    assert tiny(row="fedap", correction={"name": "fedprox"}).correction.name == "fedprox"


def test_a_model_of_an_attempt_that_was_not_committed_is_sent_to_nobody(tiny, phantoms, tmp_path, monkeypatch):
    experiment = tiny(row="fedap", phases=[{"name": "train", "rounds": 2}])
    data = phantoms(experiment, "site-1", "site-2", "site-3")
    coordinator = Coordinator(experiment, "r", tmp_path / "server")
    hosts = {site: Site(experiment, data[site], tmp_path / site) for site in data}

    def step(*there):
        coordinator.begin(there)
        for site in there:
            coordinator.accept(site, hosts[site].handle(coordinator.order(site), coordinator.down(site)))
        coordinator.close()

    step(*data)
    with monkeypatch.context() as full:
        full.setattr(RunStore, "commit", Mock(side_effect=StateError("the disk is full.")))
        with pytest.raises(StateError):
            step(*data)
    step("site-1", "site-2")
    coordinator.begin(data)
    mean = coordinator.down("")
    assert all(torch.equal(sent, mean[key]) for key, sent in coordinator.down("site-3").items())
    assert any(not torch.equal(sent, mean[key]) for key, sent in coordinator.down("site-2").items())
