"""Key networks that the server averages (key_sync "aggregate"), in the plain loop."""

from __future__ import annotations

import pytest
import torch
from tests.test_two_phases import scans, spied, two  # noqa: F401 - a fixture

from fedretina.exchange.partition import KEY, partition_of
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.settings.contrastive import MocoV2Settings
from killed import killed_at_every_write


def averaged(sync="aggregate", rounds=2, momentum=0.5, **words):
    experiment = two(rounds={"pretrain": rounds, "train": 1}, phantom_images=16, **words)
    kept = MocoV2Settings(key_sync=sync, queue_start="keep", queue=16, momentum=momentum)
    first = experiment.phases[0].model_copy(update={"contrastive": kept})
    return experiment.model_copy(update={"phases": (first, *experiment.phases[1:])})


def parts_of(experiment):
    return partition_of(experiment, build_on_meta(experiment.network, experiment.head_width or 2))


def test_what_travels_of_a_key_network_is_beside_what_it_follows_and_of_its_kind():
    parts, plain = parts_of(averaged()), parts_of(averaged("reset"))
    assert plain.keys == ()
    own = [key.removeprefix(KEY) for key in parts.keys]
    assert own == [key for key in parts.shared if key.startswith(("encoder.", "contrast.projector."))]
    assert all(parts.kinds[f"{KEY}{key}"] is parts.kinds[key] for key in own)
    assert set(parts.sent("pretrain")) - set(plain.sent("pretrain")) == set(parts.keys)
    assert parts.sent("train") == plain.sent("train")
    assert parts.shared == plain.shared
    assert parts.digest() != plain.digest()
    assert parts_of(averaged("ema")).digest() == plain.digest()
    local = parts_of(averaged(exchange={"personal": "nothing", "batchnorm": "local_all"}))
    assert not any(".running_mean" in key for key in local.keys)
    assert parts_of(averaged(exchange={"personal": "everything"}, classes=None, correction={"name": "none"})).keys == ()


@pytest.mark.slow
def test_the_server_sends_the_mean_of_the_sites_key_networks_down(scans, tmp_path):  # noqa: F811
    experiment = averaged()
    found = spied(experiment, scans(experiment, "site-1", "site-4"), tmp_path)
    (_, first), (_, second), (_, third) = found[:3]
    keys = [key for key in first["site-1"][0] if key.startswith(KEY)]
    assert keys
    for key in keys:  # it begins as the network that it follows
        assert torch.equal(first["site-1"][0][key], first["site-1"][0][key.removeprefix(KEY)])
        ups = [first[site][1].tensors[key].double() for site in sorted(first)]
        down = second["site-1"][0][key]
        assert torch.allclose(down.double(), sum(ups) / 2, rtol=1e-6, atol=1e-7), key
        assert torch.equal(down, second["site-4"][0][key])
    weight = next(key for key in keys if key.endswith("weight"))
    assert not torch.equal(second["site-1"][0][weight], second["site-1"][0][weight.removeprefix(KEY)])  # a slower one
    assert not any(key.startswith(KEY) for key in [*third["site-1"][0], *third["site-1"][1].tensors])


@pytest.mark.slow
def test_the_mean_of_one_site_is_its_own_key_network_to_the_bit(scans, tmp_path):  # noqa: F811
    digests = {}
    for sync in ("ema", "aggregate", "reset"):
        experiment = averaged(sync)
        results = run_loop(experiment, scans(experiment, "site-4"), tmp_path, sync)
        digests[sync] = [step["digest"] for step in results["steps"] if step["task"] in ("pretrain", "train")]
    assert digests["aggregate"] == digests["ema"]
    assert digests["reset"][0] == digests["ema"][0]
    assert digests["reset"][1] != digests["ema"][1]


@pytest.mark.slow
def test_killed_at_every_write_a_run_with_averaged_keys_ends_with_the_same_bits(scans, tmp_path):  # noqa: F811
    experiment = averaged()
    data = scans(experiment, "site-1", "site-4")
    expected = run_loop(experiment, data, tmp_path, "whole")
    got, deaths = killed_at_every_write(
        lambda: run_loop(experiment, data, tmp_path, "cut"), tmp_path / "cut", lambda path: "pretrain" in path.name
    )
    assert deaths > 8
    assert {k: v for k, v in got.items() if k != "run"} == {k: v for k, v in expected.items() if k != "run"}
