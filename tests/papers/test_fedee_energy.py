"""What FedEE's methods take in energy: from steps, their time, and bytes."""

from __future__ import annotations

import pytest

from fedretina_papers.fedee_energy import energy_of, seconds_of, steps_a_round
from fedretina_papers.fedee_results import FedeeResults
from fedretina_papers.stored import Benchmark


def made(members):
    run = {
        "rounds": 4,
        "settings": {"phases": [{"training": None}], "training": {"batch_size": 10, "epochs": 2, "drop_last": False}},
        "sites": {"a": {"images": {"train": 25}}, "b": {"images": {"train": 10}, "trained": False}},
        "bytes_up": 3_600_000_000 * members,
        "bytes_down": 0,
    }
    return {**run, "reading": {"runs": dict.fromkeys(range(members))}} if members > 1 else run


def test_energy_is_power_times_the_time_of_the_steps_and_what_moves():
    runs = {"fedavg": {1: made(1)}, "deep_fedavg": {1: made(5)}}
    energy = {"watts": 100, "grid": {"router_w": 6, "idle_w": 4, "up_mbit_s": 8, "down_mbit_s": 8}}
    results = FedeeResults(Benchmark({"rows": list(runs), "energy": energy}, runs), {})
    costs = {"methods": {"Backbone": {"training_s": {"median": 0.5}, "power": None}}}
    found = energy_of(results, costs)
    assert steps_a_round(made(1)) == 6  # three batches, two epochs, one site that trains
    one, five = found["Backbone"], found["Deep Ens."]
    assert (one.seconds, five.seconds) == (3, 15)
    assert one.run.training.wh == pytest.approx(4 * 3 * 100 / 3600)
    assert one.run.communication.wh == pytest.approx(3600 * 10 / 3600)  # 3.6 GB at 1 MB a second, 10 W
    assert five.run.total_wh == pytest.approx(5 * one.run.total_wh)
    assert one.run.co2e_g == pytest.approx(one.run.total_wh * 0.281)
    assert not one.run.metered


def test_batches_that_are_left_out_cost_nothing():
    run = made(1)
    run["settings"]["training"]["drop_last"] = True
    assert steps_a_round(run) == 4


def test_methods_are_set_beside_each_other_by_the_turns_that_they_shared():
    methods = {
        "Backbone": {"training_s": {"median": 0.2}},
        "FedEE": {"training_s": {"median": 0.1}, "training_ratio": {"median": 1.1}},  # the machine was idle then
    }
    assert seconds_of(methods, "FedEE", "training") == pytest.approx(0.22)
    assert seconds_of(methods, "Backbone", "training") == 0.2
