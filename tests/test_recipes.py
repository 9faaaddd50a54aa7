"""Recipes: any row takes one, the papers' rows are as they were, and a job's own words win."""

from __future__ import annotations

import pytest
import yaml
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.cli.trial import chosen
from fedretina.errors import SettingsError
from fedretina.jobs import settings_of_row
from fedretina.loop import run_loop
from fedretina.recipes import RowRecipe
from fedretina.rows import ROWS
from fedretina.rows.recipes import RECIPES
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan

BLIND = {name for name, row in ROWS.items() if any("contrastive" in one for one in row.settings.get("phases", ()))}


@pytest.mark.parametrize("row", sorted(set(ROWS) - BLIND - {"analytic"}))
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_row_takes_a_recipe(row, recipe):
    plain, asked = Experiment.resolve({"row": row}), Experiment.resolve({"row": row, "recipe": recipe})
    assert plain.recipe is None
    assert plain.network.frozen == "nothing"
    assert plain.choice.model == "best"
    assert asked.network.frozen == 3
    assert asked.network.head.layout == "linear"
    assert asked.network.head.start == ("ridge" if asked.exchange.personal in ("head", "everything") else "seed")
    assert asked.training.optimizer == "adam"
    assert asked.training.encoder_factor == 0.1
    assert asked.theta.source.name == "validation"
    assert asked.choice.model == "last"
    assert getattr(asked.objective, "kl_anneal", "paper_pace") == "paper_pace"
    # What makes the row the method that it is stays as it was.
    for axis in ("exchange", "aggregation", "correction", "classes", "grades", "pooled", "evaluation"):
        assert getattr(asked, axis) == getattr(plain, axis)
    assert asked.objective.name == plain.objective.name
    assert asked.settings_digest() != plain.settings_digest()


@pytest.mark.parametrize("row", sorted(set(ROWS) - BLIND - {"analytic"}))
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_rows_own_job_trains_by_the_recipe_that_it_is_asked_for(row, recipe):
    """The sizes of the row's own job are those of a demonstration and would stand over the recipe's."""
    asked = Experiment.resolve(yaml.safe_load(settings_of_row(row, recipe)))
    bare = Experiment.resolve({"row": row, "recipe": recipe})
    assert asked.recipe == recipe
    for section, fixed in RECIPES[recipe].settings.items():
        for name in fixed:
            assert getattr(getattr(asked, section), name) == getattr(getattr(bare, section), name)
    plain = Experiment.resolve(yaml.safe_load(settings_of_row(row)))
    assert asked.images == plain.images
    assert [(one.name, one.rounds) for one in asked.phases] == [(one.name, one.rounds) for one in plain.phases]
    for phase in asked.phases:  # nor do the settings that the row has for a phase of its own
        own = (phase.training or asked.training).model_dump()
        assert {name: own[name] for name in RECIPES[recipe].settings["training"]} == RECIPES[recipe].settings[
            "training"
        ]
    assert asked.network.encoder == plain.network.encoder


def test_every_door_to_a_row_takes_the_recipes_rate_and_the_callers_own_before_it(tmp_path):
    def written(*words):
        job = tmp_path / f"job{len(words)}"
        done = CliRunner().invoke(main, ["job", "write", "fedavg", *words, "--name", "small", "--out", str(job)])
        assert done.exit_code == 0, done.output
        return Experiment.load(job / "app" / "config" / "experiment.yaml")

    RowRecipe("fedavg", {"recipe": "small_sites"}, sites=["a"]).export(str(tmp_path / "flare"))
    doors = {
        "loop, simulate": Experiment.resolve(chosen("fedavg", None, ["recipe=small_sites"])),
        "job write": written("--recipe", "small_sites"),
        "FLARE": Experiment.load(next((tmp_path / "flare").rglob("experiment.yaml"))),
    }
    assert {
        where: (one.training.learning_rate, one.training.batch_size) for where, one in doors.items()
    } == dict.fromkeys(doors, (1e-3, 8))
    assert doors["job write"].name == "small"
    assert written().training.learning_rate == 0.05
    for changes in (
        ["recipe=small_sites", "training.learning_rate=0.01"],
        ["training.learning_rate=0.01", "recipe=small_sites"],
    ):
        own = Experiment.resolve(chosen("fedavg", None, changes)).training
        assert (own.learning_rate, own.batch_size) == (0.01, 8)
    with pytest.raises(SettingsError, match="there is no recipe 'large_sites'; the recipes are small_sites"):
        chosen("fedavg", None, ["recipe=large_sites"])


@pytest.mark.parametrize("row", sorted(BLIND))
def test_a_row_that_pre_trains_without_labels_is_refused(row):
    with pytest.raises(SettingsError, match="recipe 'small_sites' is for runs that train with labels alone"):
        Experiment.resolve({"row": row, "recipe": "small_sites"})


def test_a_row_that_trains_nothing_is_refused():
    with pytest.raises(SettingsError, match="a run of sums trains nothing: leave recipe out"):
        Experiment.resolve({"row": "analytic", "recipe": "small_sites"})


def test_a_jobs_own_words_win_over_the_recipe():
    asked = Experiment.resolve(
        {
            "row": "feduaa",
            "recipe": "small_sites",
            "network": {"frozen": "nothing", "head": {"layout": "linear_bn_relu_linear"}},
            "training": {"optimizer": "sgd", "momentum": 0.9},
            "augment": {"rotate_degrees": 20},
            "objective": {"kl_anneal": "official"},
            "theta": {"source": "train_online"},
            "choice": {"model": "best", "window": 3},
        }
    )
    assert asked.network.frozen == "nothing"
    assert (asked.network.head.start, asked.network.head.width) == ("seed", 512)
    assert (asked.training.optimizer, asked.training.momentum, asked.training.schedule) == ("sgd", 0.9, "cosine")
    assert asked.augment.rotate_degrees == 20
    assert asked.objective.kl_anneal == "official"
    assert asked.theta.source.name == "train_online"
    assert asked.choice.window == 3
    shared = Experiment.resolve(
        {"row": "fedavg", "recipe": "small_sites", "grades": 5, "exchange": {"personal": "nothing"}}
    )
    assert shared.network.head.start == "seed"  # a head that travels begins alike at all sites
    other = Experiment.resolve({"row": "feduaa", "recipe": "small_sites", "objective": "cross_entropy"})
    assert other.objective.name == "cross_entropy"


def test_stored_settings_give_the_same_experiment_again():
    asked = Experiment.resolve({"row": "fedee_tweu", "recipe": "small_sites"})
    assert Experiment.resolve(asked.agreed()) == asked


def test_an_unknown_recipe_is_told_with_those_there_are():
    with pytest.raises(SettingsError, match="there is no recipe 'large_sites'; the recipes are small_sites"):
        Experiment.resolve({"recipe": "large_sites"})


def test_a_run_of_a_recipe_ends_with_its_last_round(tiny, phantoms, tmp_path):
    words = {"images": {"image_size": 32}, "phantom_images": 24, "verdict": "off"}
    run = Experiment.resolve(
        {
            **words,
            "row": "feduaa",
            "recipe": "small_sites",
            "seed": 3,
            "network": {"encoder": "efficientnet_lite0"},
            "phases": [{"name": "train", "rounds": 3}],
            "report": {"draws": 10, "page": True},
        }
    )
    data = phantoms(run, "site-1", "site-2")
    results = run_loop(run, data, tmp_path, "r")
    assert results["chosen"] == Plan.of(run)[2].name == "train-0002"
    assert "the last round" in (tmp_path / "r" / "server" / "report.html").read_text()
