"""Rows of a plan that differ in phases, sites and seeds."""

from __future__ import annotations

import pytest

from fedretina.errors import SettingsError
from fedretina_papers.plan import BenchmarkPlan, preset
from fedretina_papers.published import published_oct

PHASES = {"pretrain": {"rounds": 2, "training": {"epochs": 1}}, "train": {"rounds": 3}}
LAYERS = {"network": {"contrast": None}}
SMALL = {
    "name": "small",
    "paper": "oct",
    "reference": "oct_moco_scaffold",
    "rows": ["oct_fedavg", "oct_moco_scaffold"],
    "seeds": [1, 2],
    "sites": {"site-1": None, "site-4": None},
    "spare_sites": {"site-5": None},
    "experiment": {"phases": PHASES, "phantom_images": 40},
}


def plan(**words):
    return BenchmarkPlan.read({**SMALL, **words})


def phases(made, name, seed=1, change=None):
    choice = next(choice for choice in made.rows if choice.name == name)
    return made.experiment_of(choice, seed, change or {}).phases


def test_each_row_gets_the_settings_of_the_phases_that_it_has():
    made = plan()
    assert [(one.name, one.rounds) for one in phases(made, "oct_fedavg")] == [("train", 3)]
    both = phases(made, "oct_moco_scaffold")
    assert [(one.name, one.rounds) for one in both] == [("pretrain", 2), ("train", 3)]
    assert (both[0].training.epochs, both[0].training.optimizer) == (1, "sgd")  # the row's own beside the plan's
    tuned = phases(made, "oct_moco_scaffold", change={"phases": {"train": {"training": {"learning_rate": 0.5}}}})
    assert tuned[1].training.learning_rate == 0.5
    assert tuned[1].rounds == 3


def test_a_phase_that_is_null_is_left_out_and_a_list_is_taken_as_it_is():
    rows = [
        {"name": "alone", "row": "oct_moco_scaffold", "settings": {"phases": {"pretrain": None}, **LAYERS}},
        {
            "name": "listed",
            "row": "oct_moco_scaffold",
            "settings": {"phases": [{"name": "train", "rounds": 7}], **LAYERS},
        },
    ]
    made = plan(rows=rows, reference="alone")
    assert [one.name for one in phases(made, "alone")] == ["train"]
    assert [(one.name, one.rounds) for one in phases(made, "listed")] == [("train", 7)]
    with pytest.raises(SettingsError, match="which no row has"):
        plan(experiment={"phases": {"pretrian": {"rounds": 1}}})


def test_sites_and_seeds_of_a_row_and_what_differs_by_seed():
    weights = {"network": {"weights": {"source": "file", "file": "x", "sha256": "a" * 64}}}
    own = {"name": "own", "row": "oct_fedavg", "sites": ["site-5", "site-1"], "seeds": [7], "by_seed": {7: weights}}
    made = plan(rows=["oct_moco_scaffold", own])
    assert made.trained_on(made.rows[1]) == ("site-1", "site-5")
    assert made.trained_on(made.rows[0]) == ("site-1", "site-4")
    assert (made.seeds_of(made.rows[0]), made.seeds_of(made.rows[1])) == ((1, 2), (7,))
    assert made.experiment_of(made.rows[1], 7, {}).network.weights.source == "file"
    assert made.experiment_of(made.rows[1], 8, {}).network.weights.source == "none"
    again = BenchmarkPlan.model_validate(made.model_dump(mode="json"))  # as a worker gets it
    assert again == made
    with pytest.raises(SettingsError, match="name sites or spare_sites"):
        plan(rows=["oct_moco_scaffold", {**own, "sites": ["site-9"]}])
    with pytest.raises(SettingsError, match="one of the two"):
        plan(spare_sites={"site-1": None})


def test_the_plans_that_come_with_the_package():
    made = BenchmarkPlan.read(preset("oct"))
    assert made.reference == "oct_moco_scaffold"
    once = next(choice for choice in made.rows if choice.name.endswith("resnet50"))
    assert [one.rounds for one in made.experiment_of(once, 1, {}).phases] == [1, 1]
    trains = {choice.name: len(made.trained_on(choice)) for choice in made.rows}
    table = published_oct().tables["table7"].rows
    assert {said: trains[name] for name, said in table.items()} == {"2": 2, "4": 4, "8": 8, "16": 16}
    with_classes = BenchmarkPlan.read(
        {**preset("oct"), "experiment": {**preset("oct")["experiment"], "classes": ["normal", "amd", "dme"]}}
    )
    personal = [choice for choice in with_classes.rows if choice.name in ("oct_centralised", "oct_moco_feduaa")]
    assert [with_classes.experiment_of(choice, 1, {}).classes for choice in personal] == [None, None]


def test_a_head_that_travels_is_not_called_personal():
    plan = BenchmarkPlan.read(preset("fedee-heart"))
    assert plan.title(plan.choice("fedavg")) == "FedAvg"
    assert plan.title(plan.choice("mc_dropout_ft")) == "MC-dropout (mc_dropout_ft)"
    fundus = BenchmarkPlan.read(preset("fedee"))
    assert fundus.title(fundus.choice("fedavg")) == "FedAvg, personal head"
