"""The corrections in the whole round: loop, store, acknowledgement, bytes."""

import math

import pytest
import torch

from fedretina.aggregation.coordinator import Coordinator
from fedretina.corrections.correction import MEMORY
from fedretina.exchange.partition import CONTROL, partition_of
from fedretina.local.site import Site
from fedretina.local.site_state import SiteState, read_history
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.settings.exchange import Kind
from fedretina.storage import read_tensors
from fedretina.tracking.curves import site_points

pytestmark = pytest.mark.slow
OFF = {
    "fedprox": {"mu": 0},
    "feddyn": {"alpha": 0},
    "feddc": {"alpha": 0},
    "moon": {"mu": 0},
}


def digests(results):
    return [record["digest"] for record in results["steps"] if record["task"] == "train"]


@pytest.mark.parametrize("name", OFF)
def test_switched_off_every_correction_is_fedavg_to_the_last_bit(name, tiny, phantoms, undisturbed, tmp_path):
    plain = tiny(row="fedavg")
    data = phantoms(plain, "site-1", "site-2")
    expected = digests(undisturbed(plain, data)[0])
    off = tiny(row="fedavg", correction={"name": name, **OFF[name]})
    assert digests(run_loop(off, data, tmp_path, "off")) == expected
    on = tiny(row="fedavg", correction={"name": name})
    assert digests(run_loop(on, data, tmp_path, "on")) != expected
    if name != "moon":  # which adds to the loss, and nothing to its gradient
        rounds = read_history(tmp_path / "on" / "site-1").steps()
        assert [math.isfinite(one["correction_ratio"]) for one in rounds if "weight" in one] == [True] * 2


def test_scaffold_with_one_site_is_plain_training_to_the_last_bit(tiny, phantoms, tmp_path):
    plain, corrected = (tiny(row=row, phases=[{"name": "train", "rounds": 3}]) for row in ("fedavg", "scaffold"))
    data = phantoms(plain, "site-2")
    first, second = (run_loop(e, data, tmp_path, e.row) for e in (plain, corrected))
    assert digests(first) == digests(second)


def test_a_control_travels_beside_every_shared_parameter_and_nothing_else(tiny):
    experiment = tiny(row="feduaa_scaffold")
    net = build_on_meta(experiment.network)
    parts = partition_of(experiment, net)
    assert [key.removeprefix(CONTROL) for key in parts.controls] == list(parts.parameters)
    assert all(key.startswith("encoder.") for key in parts.parameters)
    assert Kind.NORM not in {parts.kinds[key] for key in parts.parameters}  # personal under local_all
    assert {parts.kinds[key] for key in parts.controls} == {Kind.CONTROL}
    assert tiny(row="feduaa").digest(partition_of(tiny(row="feduaa"), net)) != experiment.digest(parts)


def test_scaffold_doubles_the_bytes_of_training_both_ways(tiny, phantoms, tmp_path):
    # With BatchNorm at home everything that travels is a parameter, so the factor is 2 to the byte.
    plain, corrected = tiny(row="fedbn"), tiny(row="fedbn", correction={"name": "scaffold"})
    data = phantoms(plain, "site-1", "site-2")
    once, twice = (run_loop(e, data, tmp_path, n)["steps"] for e, n in ((plain, "a"), (corrected, "b")))
    for before, after in zip(once, twice, strict=True):
        factor = 2 if before["task"] == "train" else 1
        assert after["bytes_down"] == factor * before["bytes_down"]
        assert after["bytes_up"] == {site: factor * size for site, size in before["bytes_up"].items()}


def test_a_refused_update_does_not_advance_the_sites_variate(tiny, phantoms, tmp_path):
    experiment = tiny(row="scaffold")
    data = phantoms(experiment, "site-1", "site-2")
    coordinator = Coordinator(experiment, "r", tmp_path / "server")
    hosts = {site: Site(experiment, data[site], tmp_path / site) for site in data}
    coordinator.begin(data)
    for site, host in hosts.items():
        answer = host.handle(coordinator.order(site), coordinator.down())
        if site == "site-1":
            coordinator.accept(site, answer)
    coordinator.close()
    coordinator.begin(data)
    name_of = lambda step: coordinator.plan[step].name  # noqa: E731
    counted = {}
    for site, host in hosts.items():
        host.handle(coordinator.order(site), coordinator.down())
        counted[site] = SiteState(tmp_path / site, host.digest, name_of).kept(0)
    assert counted["site-2"] is None
    variates = [value for key, value in counted["site-1"].memory.items() if key.startswith("variate:")]
    assert variates
    # One of two enrolled sites answered, so the server's variate is half of what that site's became.
    control = coordinator.down()
    own = counted["site-1"].memory
    for key in coordinator.partition.parameters:
        torch.testing.assert_close(control[f"{CONTROL}{key}"], own[f"variate:{key}"] / 2)


@pytest.mark.parametrize(
    ("row", "at_server", "at_site"),
    [
        ("scaffold", CONTROL, "variate:"),
        ("feddyn", f"{MEMORY}drift:", "drift:"),
        ("feddc", CONTROL, "gradient:"),
    ],
)
@pytest.mark.parametrize(
    "third",
    [
        pytest.param((True, False, True), id="a site is off for a round"),
        pytest.param((False, False, True, True), id="a site joins late"),
    ],
)
def test_the_servers_memory_stays_the_mean_over_the_sites_of_the_run(
    row, at_server, at_site, third, tiny, phantoms, tmp_path
):
    correction = {"correction": {"by_images": False}} if row == "feddc" else {}
    experiment = tiny(row=row, phases=[{"name": "train", "rounds": 4}], **correction)
    data = phantoms(experiment)
    hosts = {site: Site(experiment, data[site], tmp_path / site) for site in data}
    for comes in third:
        there = ("site-2", "site-1", "site-3") if comes else ("site-1", "site-2")
        coordinator = Coordinator(experiment, "r", tmp_path / "server")  # as a job that goes on with the run
        coordinator.begin(there)
        for site in there:
            coordinator.accept(site, hosts[site].handle(coordinator.order(site), coordinator.down(site)))
        coordinator.close()
    last = f"train-{len(third) - 1:04}.safetensors"
    model, *kept = (read_tensors(tmp_path / end / last)[0] for end in ("server", *data))
    for key in coordinator.partition.parameters:
        mean = sum(own[f"memory:{at_site}{key}"] for own in kept) / 3
        torch.testing.assert_close(model[f"{at_server}{key}"], mean, rtol=1e-4, atol=1e-6)
    enrolled = [sorted(data) if any(third[: at + 1]) else ["site-1", "site-2"] for at in range(len(third))]
    assert [step["enrolled"] for step in coordinator.records] == enrolled
    assert coordinator.records[1]["asked"] == ["site-1", "site-2"]


def test_under_sgd_with_momentum_and_adam_scaffold_trains_to_finite_weights(tiny, phantoms, tmp_path):
    for optimizer, own in (("sgd", {"momentum": 0.9}), ("adam", {})):
        training = {"optimizer": optimizer, **own, "learning_rate": 0.005, "schedule": "cosine"}
        experiment = tiny(row="scaffold", training=training, phases=[{"name": "train", "rounds": 3}])
        results = run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path, optimizer)
        assert len(digests(results)) == 3
        points = site_points(read_history(tmp_path / optimizer / "site-1").numbered())
        curve = [point.value for step in points for point in step if point.name == "correction_ratio"]
        assert curve[0] == 0  # nobody knows a variate yet
        assert min(curve[1:]) > 0
        assert not any(record["refused"] for record in results["steps"])
