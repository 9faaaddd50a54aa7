"""A FedEE benchmark from end to end: run, read anew, figures stored, and a page from what is stored alone."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from fedretina.errors import StateError
from fedretina.storage import write_json
from fedretina_papers.compared import statistics
from fedretina_papers.fedee_figures import store_fedee_figures
from fedretina_papers.fedee_page import write_fedee_page
from fedretina_papers.fedee_tables import rows_of_estimators
from fedretina_papers.fine_tuned import begins_with
from fedretina_papers.plan import BenchmarkPlan, preset
from fedretina_papers.runner import run_benchmark

SMALL = {
    "name": "small",
    "paper": "fedee",
    "reference": "fedee",
    "rows": ["fedavg", "fedee"],
    "readings": [
        {"name": "deep_fedavg", "of": "fedavg", "reading": "deep_ensemble", "members": 2},
        {"name": "fedavg_temperature", "of": "fedavg", "reading": "temperature"},
        {"name": "fedee_final_head", "of": "fedee", "reading": "softmax"},
        {"name": "majority", "of": "fedavg", "reading": "majority"},
    ],
    "seeds": [1, 2],
    "sites": {"site-1": None, "site-2": None},
    "experiment": {
        "phases": [{"name": "train", "rounds": 1}],
        "images": {"image_size": 32},
        "network": {"encoder": "efficientnet_lite0", "head": {"layout": "linear"}},
        "training": {"batch_size": 8, "optimizer": "adam", "learning_rate": 0.0005, "threads": 1},
        "phantom_images": 40,
        "report": {"draws": 10, "page": False},
    },
    "splits": {"kind": "once"},
    "others": 5,
    "printed": "isic2019",
}
METHODS = {
    name: {
        "parameters": 4_000_000 * count,
        "multiply_adds": 20_000_000 * count,
        "memory_inference": 50_000_000,
        "memory_training": None if name == "Deep Ens." else 90_000_000,
        "inference_s": {"median": 0.02 * ratio, "low": 0.019 * ratio, "high": 0.021 * ratio},
        "inference_ratio": {"median": ratio, "low": ratio - 0.01, "high": ratio + 0.01},
        **(
            {}
            if name == "Deep Ens."
            else {
                "training_s": {"median": 0.1, "low": 0.09, "high": 0.11},
                "training_ratio": {"median": 1.0, "low": 0.9, "high": 1.1},
                "power": None,
            }
        ),
    }
    for name, count, ratio in (("Backbone", 1, 1.0), ("Deep Ens.", 2, 2.0), ("FedEE", 1, 1.02))
}


PRESETS = ["fedee", "fedee-dermoscopy", "fedee-heart", "fedee-activity"]
NAMES = {"Backbone": "fedavg", "Deep Ens.": "deep_fedavg", "FedEE": "fedee", "Temperature": "fedavg_temperature"}


@pytest.fixture(scope="module")
def out(little_encoders, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fedee")
    told = []
    assert run_benchmark(BenchmarkPlan.read(SMALL), folder, 1, told.append) == {}
    assert sum("read from" in one.words for one in told) == 7
    again = []
    assert run_benchmark(BenchmarkPlan.read(SMALL), folder, 1, again.append) == {}
    assert again == []  # nothing trains and nothing is read twice
    statistics(folder, draws=50)
    costs = {"asked": {"Deep Ens.": {"networks": 2}}, "encoder": "efficientnet_lite0", "shape": [3, 32, 32]}
    write_json(folder / "costs" / "side_by_side.json", {**costs, "batch_size": 8, "repeats": 3, "methods": METHODS})
    store_fedee_figures(folder, draws=50)
    return folder


def answers(out, name, seed, site="site-1"):
    return np.load(out / "answers" / name / f"seed-{seed}" / f"{site}.npz")


def brier(out, name):
    runs = json.loads((out / "fedee.json").read_text())["runs"][name].values()
    return np.mean(
        [
            np.average(
                [site["brier"] for site in one["sites"].values()], weights=[s["images"] for s in one["sites"].values()]
            )
            for one in runs
        ]
    )


def record(out, name, seed):
    return json.loads((out / "results" / name / f"seed-{seed}.json").read_text())


@pytest.mark.slow
def test_a_reading_of_stored_runs_is_what_one_gets_by_hand(out):
    runs = [answers(out, "fedavg", seed) for seed in (1, 2)]
    mean = np.mean([run["probabilities"] for run in runs], axis=0)
    deep = answers(out, "deep_fedavg", 1)
    assert deep["probabilities"] == pytest.approx(mean)
    assert deep["uncertainty"] == pytest.approx(-(mean * np.log(mean)).sum(1) / np.log(mean.shape[1]))
    assert not (out / "results" / "deep_fedavg" / "seed-2.json").exists()  # one trial of all runs
    told, members = record(out, "deep_fedavg", 1), [record(out, "fedavg", seed) for seed in (1, 2)]
    assert told["sites"]["site-1"]["test"]["accuracy"] == pytest.approx(np.mean(mean.argmax(1) == deep["labels"]))
    assert told["bytes_up"] == sum(one["bytes_up"] for one in members)
    assert told["seconds"] == pytest.approx(sum(one["seconds"] for one in members))
    assert "deep ensemble of 2" in told["title"]
    assert answers(out, "fedee", 1)["logits"].shape[1] == 5
    assert answers(out, "fedee_final_head", 1)["logits"].shape[1] == 1
    assert record(out, "fedavg_temperature", 1)["sites"]["site-1"]["temperature"]["images"] == len(
        runs[0]["val_labels"]
    )
    assert set(told["sites"]["site-1"]["others"]) == {"site-2"}
    majority = record(out, "majority", 1)
    assert (majority["passes"], majority["bytes_up"], majority["bytes_down"], majority["seconds"]) == (0, 0, 0, 0)
    constant = json.loads((out / "fedee.json").read_text())["runs"]["majority"]["1"]["sites"]["site-1"]
    assert constant["accuracy"] == constant["constant"]["accuracy"]


@pytest.mark.slow
def test_the_page_comes_from_what_is_stored_alone(out, tmp_path):
    first = tmp_path / "first" / "page.md"
    write_fedee_page(out, first, first.parent / "pictures")
    bare = tmp_path / "bare"
    shutil.copytree(out, bare, ignore=shutil.ignore_patterns("answers", "runs", "cache"))
    second = tmp_path / "second" / "page.md"
    write_fedee_page(bare, second, second.parent / "pictures")
    text = second.read_text()
    assert text == first.read_text()
    assert sorted(path.name for path in first.parent.glob("pictures/*")) == sorted(
        path.name for path in second.parent.glob("pictures/*")
    )
    assert "| FedAvg | FedEE | 2 |" in text
    assert "0.748 ± 0.01" in text  # the paper's, beside
    across = text.split("## Every estimator under every strategy")[1].split("\n## ")[0]
    assert "| estimator | FedAvg |\n" in across  # one strategy ran
    assert across.count("| EU | not run |") == 7  # five measures, and what it took in two
    assert [one in across for one in ("**Training passes**", "**Sent by all sites**")] == [True, True]
    best = min(NAMES, key=lambda one: brier(bare, NAMES[one]))
    assert f"| best mean | {best} |" in across.split("**Brier score**")[1]
    assert "holds here: the median ratio is 1.020" in text
    assert "65 W are assumed" in text
    assert str(out) not in text
    heads = [line for line in text.splitlines() if line.startswith(("| row |", "| strategy |"))]
    assert len(heads) > 10
    assert [one for one in heads if "training passes" not in one or "sent by all sites" not in one] == []
    assert "| not in the paper | Majority: how common each grade is | 2 |" in text
    assert "- The round is chosen on validation images, where in the authors' code the last one counts" in text
    plan = json.loads((bare / "plan.json").read_text())
    plan["settings"]["choice"] = {"model": "last"}
    write_json(bare / "plan.json", plan)
    write_fedee_page(bare, second, second.parent / "pictures")
    assert (
        "- The last round counts, as in the authors' code; validation and test images are two sets"
        in second.read_text()
    )
    (bare / "results" / "fedee" / "seed-1.json").write_text(
        (bare / "results" / "fedee" / "seed-2.json").read_text().replace('"seed": 2', '"seed": 1')
    )
    with pytest.raises(StateError, match="fedee, seed 1"):
        write_fedee_page(bare, second, second.parent / "pictures")


@pytest.mark.parametrize("name", PRESETS)
def test_every_estimator_runs_under_the_settings_of_its_strategy(name):
    plan = BenchmarkPlan.read(preset(name))
    runs = {choice.name: choice for choice in plan.rows}
    readings = {one.name: one.of for one in plan.readings}
    estimators = rows_of_estimators()
    assert set(estimators) == {"Backbone", "MCDrop", "Deep Ens.", "FedEE", "Temperature", "EU", "TWEU"}
    for strategy, plain in estimators.pop("Backbone").items():
        base = plan.experiment_of(runs[plain], 1, {})
        assert bool(base.tune.epochs) == ("FT" in strategy)
        for method, by in estimators.items():
            if method in ("Deep Ens.", "Temperature"):
                assert readings[by[strategy]] == plain
                continue
            own = plan.experiment_of(runs[by[strategy]], 1, {})
            same = (own.aggregation, own.correction, own.tune, own.training, own.exchange.batchnorm)
            assert same == (base.aggregation, base.correction, base.tune, base.training, base.exchange.batchnorm)
            assert (begins_with(plan, runs[by[strategy]]) is not None) == ("FT" in strategy)


@pytest.mark.parametrize("name", PRESETS)
def test_controls_differ_from_what_they_control_in_what_is_shared_alone(name):
    plan = BenchmarkPlan.read(preset(name))
    runs = {choice.name: plan.experiment_of(choice, 1, {}) for choice in plan.rows}
    for twin, controls in {
        "fedavg": ("singleset", "centralised"),
        "fedee": ("singleset_exits", "centralised_exits"),
    }.items():
        shared = runs[twin]
        for control in (runs[one] for one in controls):
            assert control.exchange.personal == "everything"
            assert control.pooled == control.row.startswith("centralised")
            assert (control.objective, control.training, control.phases) == (
                shared.objective,
                shared.training,
                shared.phases,
            )
            assert (control.network, control.evaluation) == (shared.network, shared.evaluation)
    probe = runs["probe"]
    assert (probe.images, probe.network.encoder, probe.network.weights) == (
        runs["fedavg"].images,
        runs["fedavg"].network.encoder,
        runs["fedavg"].network.weights,
    )
    assert probe.sums is not None
    assert probe.sums.answer == "own"


@pytest.mark.parametrize("name", PRESETS)
def test_the_plans_that_come_with_the_package(name):
    plan = BenchmarkPlan.read(preset(name))
    assert plan.reference == "fedee"
    assert plan.splits.kind == "once"
    own = {one.of for one in plan.readings}
    by_itself = {name: plan.experiment_of(plan.choice(name), 1, {}).exchange.personal == "everything" for name in own}
    for kind, members in {(one.reading, one.members) for one in plan.readings if one.reading != "majority"}:
        read = [by_itself[one.of] for one in plan.readings if (one.reading, one.members) == (kind, members)]
        assert set(read) == {True, False}  # a reading of rows together has its control, a site alone
