"""Planned bytes against what a run moved and against the table of methods."""

from __future__ import annotations

import pytest

from fedretina.cli.methods import work_out
from fedretina.exchange.moved import Moved, moving_steps, run_moved, step_moved
from fedretina.exchange.partition import partition_of
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.storage import read_json


def site_traffic(parts, task="train"):
    """What one site sends and is sent in a step, as the partition has it."""
    down = {"train": parts.travelling, "finalise": (*parts.shared, *parts.calibrator)}.get(task, parts.shared)
    return Moved(*(sum(parts.sizes[key][1] for key in keys) for keys in (parts.sent(task), down)))


@pytest.mark.parametrize("row", ["feduaa", "scaffold"])
def test_a_run_moves_what_was_planned(tiny, phantoms, tmp_path, row):
    experiment = tiny(row=row, phases=[{"name": "train", "rounds": 1}])
    run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path, "run")
    parts = partition_of(experiment, build_on_meta(experiment.network, 5))
    results = read_json(tmp_path / "run" / "server" / "results.json")
    steps = moving_steps(results)
    assert [step["task"] for step in steps] == ["train", "validate", "finalise"]
    for step in steps:
        planned = site_traffic(parts, step["task"])
        assert step["bytes_down"] == planned.down
        assert set(step["bytes_up"].values()) == {planned.up}
        assert step_moved(step) == (2 * planned.up, 2 * planned.down)
    assert run_moved(results) == tuple(map(sum, zip(*(step_moved(step) for step in steps), strict=True)))
    assert steps[-1]["bytes_down"] > 0  # the chosen model goes down once more at the end


def test_scaffold_moves_twice_its_parameters_both_ways():
    parameters = {}
    for row in ("fedprox", "scaffold"):
        moved = work_out("resnet18", 4, (row,))[0].traffic
        parameters[row] = moved.travels
        assert moved.federation == 4 * (moved.up + moved.down)
    controls = parameters["scaffold"]["control"]
    assert 0 < controls <= sum(parameters["scaffold"].values()) - controls


def test_nothing_travels_where_everything_is_personal(tiny):
    experiment = tiny(row="singleset")
    assert site_traffic(partition_of(experiment, build_on_meta(experiment.network, 5))) == (0, 0)
