"""A row that only fine-tunes begins with another row's run, and ends as if all of it had run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedretina_papers.fine_tuned import begins_with
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.runner import run_benchmark

TUNED = {"name": "tuned", "row": "fedee_fedap", "settings": {"tune": {"epochs": 1, "learning_rate": 0.0001}}}
SMALL = {
    "name": "small",
    "paper": "fedee",
    "reference": "tuned",
    "rows": ["fedee_fedap", TUNED],
    "seeds": [1],
    "sites": {"site-1": None, "site-2": None},
    "experiment": {
        "phases": [{"name": "train", "rounds": 1}],
        "images": {"image_size": 32},
        "network": {"encoder": "efficientnet_lite0"},
        "training": {"batch_size": 8, "optimizer": "adam", "optimizer_state": "keep", "threads": 1},
        "phantom_images": 40,
        "report": {"draws": 10, "page": False},
    },
    "splits": {"kind": "once"},
}


def begun(**words):
    plan = BenchmarkPlan.read({**SMALL, **words})
    found = begins_with(plan, plan.choice("tuned"))
    return None if found is None else found.name


def test_only_a_row_with_the_same_run_is_begun_with():
    assert begun() == "fedee_fedap"
    assert begun(rows=[TUNED, "fedee_fedbn"]) is None
    assert begun(rows=[{**TUNED, "seeds": [1, 2]}, "fedee_fedap"]) is None  # seed 2 of the other does not run
    assert begun(rows=[TUNED, {"name": "fedee_fedap", "seeds": [1, 2]}]) == "fedee_fedap"
    assert begun(rows=[TUNED, {"name": "fedee_fedap", "sites": ["site-1"]}]) is None
    other_rate = {"name": "other", "row": "fedee_fedap", "settings": {"training": {"learning_rate": 0.001}}}
    assert begun(rows=[TUNED, other_rate]) is None
    grid = [{"setting": "training.learning_rate", "values": [0.001, 0.003, 0.01]}]
    assert begun(grid=grid) == "fedee_fedap"
    assert begun(rows=[{**TUNED, "grid": grid}, "fedee_fedap"]) is None  # a grid of its own
    assert begun(rows=[{**TUNED, "row": "mdt"}, "mdt"]) is None  # its calibrator is fitted after the fine-tuning
    plan = BenchmarkPlan.read(SMALL)
    assert begins_with(plan, plan.choice("fedee_fedap")) is None


@pytest.mark.slow
def test_a_row_that_fine_tunes_has_the_candidate_of_the_row_that_it_begins_with(little_encoder, tmp_path):
    grid = [{"setting": "training.learning_rate", "values": [1e-6, 1e-4, 0.01], "grows": 0}]
    assert run_benchmark(BenchmarkPlan.read({**SMALL, "grid": grid}), tmp_path, 1, lambda told: None) == {}
    assert {file.parent.name for file in (tmp_path / "tuning").rglob("*.json")} == {"fedee_fedap"}
    found = [json.loads((tmp_path / "results" / name / "seed-1.json").read_text()) for name in ("fedee_fedap", "tuned")]
    chosen = json.loads((tmp_path / "plan.json").read_text())["tuning"]["fedee_fedap"]["chosen"]
    assert [one["tuned"] for one in found] == [chosen, chosen]
    assert not list((tmp_path / "runs" / "tuned").rglob("train-*.json"))


@pytest.mark.slow
def test_fine_tuning_a_stored_run_equals_the_whole_run(little_encoder, tmp_path):
    begun_with, whole = tmp_path / "begun", tmp_path / "whole"
    words = []
    assert run_benchmark(BenchmarkPlan.read(SMALL), begun_with, 1, lambda told: words.append(told.words)) == {}
    assert [one.partition(",")[0] for one in words] == ["fedee_fedap", "tuned"]
    assert not list((begun_with / "runs" / "tuned").rglob("train-*.json"))
    assert run_benchmark(BenchmarkPlan.read({**SMALL, "rows": [TUNED]}), whole, 1, lambda told: None) == {}
    found, expected = (
        json.loads((out / "results" / "tuned" / "seed-1.json").read_text()) for out in (begun_with, whole)
    )
    before = json.loads((begun_with / "results" / "fedee_fedap" / "seed-1.json").read_text())
    assert found.pop("seconds") > before["seconds"]
    expected.pop("seconds")
    assert found == expected
    assert found["sites"] != before["sites"]
    for site in ("site-1", "site-2"):
        one, other = (np.load(out / "answers" / "tuned" / "seed-1" / f"{site}.npz") for out in (begun_with, whole))
        assert sorted(one.files) == sorted(other.files)
        assert all(np.array_equal(one[name], other[name]) for name in one.files)
