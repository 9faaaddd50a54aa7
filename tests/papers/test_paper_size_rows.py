"""Every row of the plan of the papers' size, on its own network: the plan itself, made small and nothing else."""

from __future__ import annotations

import copy

import pytest

from fedretina.local import gate
from fedretina.settings.plan import merged
from fedretina.storage import read_json
from fedretina_papers.paper_size.limits import Limits
from fedretina_papers.paper_size.page import will_send
from fedretina_papers.paper_size.plan import PaperSizePlan
from fedretina_papers.paper_size.run import run_paper_size
from fedretina_papers.plan import preset
from fedretina_papers.stored import answers_path

BATCHES = {"batch_size": 8, "threads": 1}
SHORT = {"rounds": 1, "training": {"epochs": 1, **BATCHES}}
SMALL = {
    "seeds": [1],
    "sites": {"site-1": None},
    "speed": {"steps": 1, "turns": 1},
    "parts": {
        "fundus": {
            "plan": {
                "experiment": {
                    "phases": {"train": {"rounds": 1}},
                    "images": {"image_size": 32},
                    "training": BATCHES,
                    "phantom_images": 16,
                }
            }
        },
        "oct": {
            "plan": {
                "experiment": {
                    "phases": {"pretrain": SHORT, "train": SHORT},
                    "images": {"image_size": 32},
                    "classes": ["normal", "drusen", "dme", "cnv"],  # phantoms show these
                    "training": {"threads": 1},
                    "phantom_images": 16,
                }
            }
        },
    },
}
MADE_SMALL = {"rounds", "epochs", "batch_size", "threads", "image_size", "phantom_images", "classes"}


def as_it_is():
    return PaperSizePlan.read({**preset("paper-size"), "sites": {"site-1": None}})


def made_small():
    words = copy.deepcopy(merged(preset("paper-size"), SMALL))
    for part in words["parts"].values():
        for row in part["plan"]["rows"]:
            phases = row.get("settings", {}).get("phases", {}) if isinstance(row, dict) else {}
            if "rounds" in phases.get("train", {}):
                phases["train"]["rounds"] = 1
    return PaperSizePlan.read(words)


def differing(one, other, name=""):
    """Names of the settings that differ, wherever they stand."""
    if isinstance(one, dict) and isinstance(other, dict):
        return set().union(*(differing(one.get(key), other.get(key), key) for key in {*one, *other}))
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other) and name != "classes":
        return set().union(*(differing(*pair, name) for pair in zip(one, other, strict=True)))
    return set() if one == other else {name}


def test_only_what_makes_it_small_differs_from_the_plan():
    plan, small = as_it_is(), made_small()
    first = [work for work in plan.works() if work.seed == 1]
    assert [small.named(work) for work in small.works()] == [plan.named(work) for work in first]
    assert len(first) == 33
    for work in first:
        one, other = (each.experiment_of(work) for each in (plan, small))
        assert differing(one.agreed(), other.agreed()) <= MADE_SMALL, plan.named(work)


@pytest.mark.slow
def test_every_row_trains_and_answers_on_the_network_that_the_plan_names(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "_SPOILED", 2)  # images that each site spoils at its end
    plan, told = made_small(), []
    assert run_paper_size(plan, tmp_path / "out", 1, Limits(), told.append) == {}
    assert told[-1].done == told[-1].total == 33
    networks = {}
    for work in plan.works():
        part, row, _ = plan.named(work).split(", ")
        record = read_json(tmp_path / f"out/{part}/results/{row}/seed-1.json")
        experiment = plan.experiment_of(work)
        networks.setdefault(record["settings"]["network"]["encoder"], set()).add((part, row))
        assert answers_path(tmp_path / "out" / part, row, 1, "site-1").exists()
        assert 0 <= record["sites"]["site-1"]["test"]["auc"] <= 1
        trains = [phase for phase in experiment.phases if phase.sums is None]
        assert all((phase.training or experiment.training).precision == "bf16" for phase in trains)
        assert (record["passes"] >= 1) == bool(trains)
        sent = 0 if record["loop_only"] else will_send(experiment)
        assert record["bytes_up"] == sent, row
    assert {name: len(rows) for name, rows in networks.items()} == {
        "resnet50": 15,
        "efficientnet_b4": 12,
        "efficientnet_lite0": 6,
    }
