"""Two phases in a benchmark: run, answered where nothing was trained, asked about other images, stored, shown."""

from __future__ import annotations

import csv
import json

import cv2
import numpy as np
import pytest
import torch
import yaml

from fedretina.storage import write_json
from fedretina_papers import runner
from fedretina_papers.measured_costs import measure_costs, network_costs
from fedretina_papers.one_run import homes, sites_of
from fedretina_papers.outside_images import outside_sets
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.run_course import moved_by_phase

PHASES = {
    name: {"rounds": 1, "training": {"epochs": 1, "batch_size": 8, "threads": 1}} for name in ("pretrain", "train")
}
NO_LAYERS = {"network": {"contrast": None}}  # the plan's own are for rows that pre-train
SMALL = {
    "name": "small",
    "paper": "oct",
    "reference": "oct_moco_scaffold",
    "rows": [{"name": "oct_moco_scaffold", "sites": ["site-1"]}],
    "seeds": [1],
    "sites": {"site-1": None, "site-4": None},
    "experiment": {
        "phases": PHASES,
        "images": {"image_size": 32},
        "network": {"encoder": "efficientnet_lite0", "contrast": {"hidden": 16, "width": 8}},
        "training": {"threads": 1},
        "phantom_images": 24,
        "report": {"draws": 10, "page": False},
    },
}


def plan(**words):
    return BenchmarkPlan.read({**SMALL, **words})


@pytest.fixture
def outside(tmp_path):
    """A set whose images lie in all splits, one without a label."""
    rows = [("train", "ERM"), ("train", ""), ("val", "RVO"), ("test", "ERM")]
    for at in range(len(rows)):
        pixels = np.random.default_rng(at).integers(0, 256, (48, 48), dtype=np.uint8)
        assert cv2.imwrite(str(tmp_path / f"{at}.png"), pixels)
    with open(tmp_path / "manifest.csv", "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["file", "label", "patient", "split"])
        writer.writerows((f"{at}.png", label, f"p{at}", split) for at, (split, label) in enumerate(rows))
    scheme = {"grades": ["erm", "rvo"], "labels": {"ERM": "erm", "RVO": "rvo"}}
    path = tmp_path / "unseen.yaml"
    path.write_text(yaml.safe_dump({"data": {"manifest": "manifest.csv", "scheme": scheme}}))
    return path


@pytest.mark.slow
def test_a_run_of_both_phases_is_stored_with_all_that_the_tables_need(little_encoder, tmp_path, outside):
    out = tmp_path / "out"
    told = []
    assert runner.run_benchmark(plan(strangers={"unseen": str(outside)}), out, 1, told.append) == {}
    record = json.loads((out / "results" / "oct_moco_scaffold" / "seed-1.json").read_text())
    assert {site: one["trained"] for site, one in record["sites"].items()} == {"site-1": True, "site-4": False}
    assert record["sites"]["site-4"]["weight"] is None
    assert [note["phase"] for note in record["history"]] == ["pretrain", "train"]
    assert record["history"][0]["accuracy"] is None
    assert 0 <= record["history"][1]["accuracy"] <= 1
    assert all(note["loss"] > 0 for note in record["history"])
    assert sum(one["up"] for one in record["moved"].values()) == record["bytes_up"]
    assert sum(one["down"] for one in record["moved"].values()) == record["bytes_down"]
    assert record["moved"]["finalise"]["down"] > 0
    assert record["moved"]["pretrain"]["up"] > 0
    assert record["classes"] == ["normal", "drusen", "dme", "cnv"]
    unseen = record["sites"]["site-4"]["strangers"]["unseen"]
    assert unseen["outside"] == 4
    assert {disease: one["outside"] for disease, one in unseen["diseases"].items()} == {"erm": 2, "rvo": 1}
    answers = np.load(out / "answers" / "oct_moco_scaffold" / "seed-1" / "site-4.npz")
    assert len(answers["labels"]) == record["sites"]["site-4"]["images"]["test"]
    assert not {str(outside), "unseen.yaml"} & set((out / "plan.json").read_text().split('"'))
    # A benchmark's folder takes sets, also from outside, later on; what results rest on it does not.
    assert runner.run_benchmark(plan(sets={"site-1": "a"}), out, 1, told.append) == {}


def test_images_from_outside_are_all_of_the_set_labelled_or_not(tmp_path, outside):
    found = outside_sets(plan(strangers={"unseen": str(outside)}), tmp_path / "out")["unseen"]
    assert sorted(found.split.files) == ["0.png", "1.png", "2.png", "3.png"]
    assert dict(zip(found.split.files, found.split.labels.tolist(), strict=True)) == {
        "0.png": 0, "1.png": -1, "2.png": 1, "3.png": 0,
    }  # fmt: skip
    assert found.split.images.shape == torch.Size([4, 3, 32, 32])
    assert found.diseases == ("erm", "rvo")


def test_whose_model_answers_where_nothing_was_trained(tmp_path):
    made = plan(rows=["oct_moco_scaffold", {"name": "oct_centralised", "settings": NO_LAYERS}, "oct_moco_feduaa"])
    sites = sites_of(made, tmp_path, 1)
    trained = {"site-1": sites["site-1"]}
    shared, pooled, personal = (made.experiment_of(choice, 1, {}) for choice in made.rows)
    assert homes(shared, trained, sites) == {"site-1": "site-1", "site-4": "site-1"}
    assert homes(personal, trained, sites) == {"site-1": "site-1"}
    assert homes(pooled, trained, sites) == {"site-1": "site-1", "site-4": "site-1"}
    assert set(homes(pooled, sites, sites).values()) == {"pool-of-site-1"}


def test_bytes_by_phase():
    steps = [
        {"step": "pretrain-0000", "bytes_up": {"a": 5, "b": 6}, "bytes_down": 3},
        {"step": "train-0000", "bytes_up": {"a": 1}, "bytes_down": 2},
        {"step": "train-0001", "bytes_up": {"a": 1, "b": 1}, "bytes_down": 2},
    ]
    before = {"pretrain": {"up": 11, "down": 6}, "train": {"up": 3, "down": 6}}
    assert moved_by_phase({"steps": steps}) == before
    end = {"step": "finalise-0000", "bytes_up": {"a": 0}, "refused": {"b": "its disk is full."}, "bytes_down": 2}
    assert moved_by_phase({"steps": steps, "end": end}) == {**before, "finalise": {"up": 0, "down": 4}}


def test_rows_with_one_network_share_a_measurement(tmp_path, monkeypatch):
    asked = []

    def counted(experiment):
        asked.append(experiment.network.encoder)
        return {"parameters": 1}

    monkeypatch.setattr("fedretina_papers.measured_costs.network_costs", counted)
    other = {"name": "other", "row": "oct_fedavg", "settings": {"network": {"encoder": "resnet18", "contrast": None}}}
    made = plan(rows=["oct_moco_scaffold", {"name": "oct_fedavg", "settings": NO_LAYERS}, other])
    told = []
    for _ in range(2):
        measure_costs(made, tmp_path, lambda *said: told.append(said))
    assert asked == ["efficientnet_lite0", "resnet18"]
    assert len(told) == 3
    assert json.loads((tmp_path / "costs" / "oct_fedavg.json").read_text()) == {"parameters": 1}
    write_json(tmp_path / "costs" / "oct_fedavg.json", {"parameters": 2})  # of another network
    measure_costs(made, tmp_path, lambda *said: told.append(said))
    assert json.loads((tmp_path / "costs" / "oct_fedavg.json").read_text()) == {"parameters": 1}


@pytest.mark.slow
def test_costs_are_those_of_the_network_that_answers():
    made = plan()
    experiment = made.experiment_of(made.rows[0], 1, {})
    found = network_costs(experiment)
    assert 3_300_000 < found["parameters"] < 3_500_000  # without the layers of pre-training
    assert found["flops"] == 2 * found["multiply_adds"]
    assert found["memory_bytes"] > 4 * found["parameters"]
    assert found["seconds"] > 0
