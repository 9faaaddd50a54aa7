"""Blocks: their controls, their training in memory, and a tiny form of one on phantoms."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from scipy.special import log_softmax, softmax
from torch.nn import functional

from fedretina.cli import main
from fedretina.data.site_data import load_site_data
from fedretina.errors import DivergedError, SettingsError, StateError
from fedretina.local.supervised import RoundOptimiser
from fedretina.local.trainer import LocalTrainer
from fedretina.loop import run_loop
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.site import SiteDataSettings
from fedretina.storage import read_tensors
from fedretina_papers import one_place
from fedretina_papers.blocks.figures import Said
from fedretina_papers.blocks.hospitals import deal, read_sets, with_stages
from fedretina_papers.blocks.joined import at_even_grades, joined
from fedretina_papers.blocks.page import write_block_page
from fedretina_papers.blocks.plan import PIXELS, BlockCase, BlockPlan
from fedretina_papers.blocks.results_pages import BLOCKS
from fedretina_papers.blocks.runs import BlockRuns, worth
from fedretina_papers.blocks.side_by_side import goes_side_by_side, trained_side_by_side
from fedretina_papers.blocks.study import run_block
from fedretina_papers.blocks.tables import comparisons, difference, figure_table, left_out
from fedretina_papers.blocks.train import RowTrainer, pooled, trained
from fedretina_papers.packed import read_packed, unpack
from fedretina_papers.plan import preset

ROOT = Path(__file__).parents[2]
TINY = {
    "cases": [{"name": "like", "title": "Like", "hospitals": {"site-1": 2, "site-4": 1}}],
    "sizes": [16],
    "skips": {},
    "draws": 2,
    "least": 2,
    "resamples": 20,
    "tuning_size": 16,
    "experiment": {
        "images": {"image_size": 32},
        "network": {"weights": {"source": "none"}},
        "phases": [{"name": "train", "rounds": 2}],
    },
}


WHOLE = {"network": {"frozen": "nothing", "frozen_cache": "strict", "frozen_statistics": False}}


def tiny(**changes):
    settings = merged(preset("e1"), {**TINY, "sites": {"site-1": None, "site-4": None}})
    ways = ("singleset_temperature", "singleset_dropout", "singleset_ensemble")
    kept = ("majority", "probe", "singleset", *ways, "sums_both", "fedavg", "pooled")
    rows = [
        {**row, "tune": []} | ({"members": 2} if row["kind"] == "ensemble" else {})
        for row in settings["rows"]
        if row["name"] in kept
    ]
    parts = {"role": "federated", "parts": ["sums_both", "fedavg"]}
    together = [{"name": kind, "title": kind, "kind": kind, **parts} for kind in ("mean", "joined")]
    return {**settings, "rows": [*rows, *together], **changes}


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("majority", "rows that stand alone"),
        ("probe", "rows that stand alone"),
        ("pooled", "a pooled row"),
    ],
)
def test_a_plan_without_its_controls_is_refused(gone, said):
    settings = tiny()
    with pytest.raises(SettingsError, match=said):
        BlockPlan.read({**settings, "rows": [row for row in settings["rows"] if row["name"] != gone]})


def test_a_difference_has_one_p_value():
    with pytest.raises(SettingsError, match="one p value"):
        BlockPlan.read(tiny(reference="singleset", pairs=[["fedavg", "singleset"]]))
    with pytest.raises(SettingsError, match="one p value"):
        BlockPlan.read(tiny(reference="", pairs=[["fedavg", "probe"], ["probe", "fedavg"]]))
    BlockPlan.read(tiny(reference="singleset", pairs=[["fedavg", "probe"], ["fedavg", "sums_both"]]))


def test_rows_that_are_run_at_some_sizes_alone(tmp_path):
    """A size of few rows has its tables, and the other size all rows; no size is without its controls."""
    few = ["majority", "probe", "singleset", "fedavg", "pooled"]
    rows = [row for row in tiny()["rows"] if row["name"] in (*few, "sums_both")]
    scaffold = {**next(row for row in rows if row["name"] == "fedavg"), "name": "scaffold", "title": "SCAFFOLD"}
    scaffold["settings"] = {**scaffold["settings"], "row": "scaffold"}
    settings = tiny(rows=[*rows, scaffold], sizes=[16, "all"], only={"all": few})
    assert run_block(BlockPlan.read(settings), tmp_path, 1, lambda told: None) == {}
    ran = {one: {file.name for file in (tmp_path / "results" / "like" / one).iterdir()} for one in ("16", "all")}
    assert ran == {"16": {*few, "sums_both", "scaffold"}, "all": {*few}}
    write_block_page(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    first, second = page.split("### ")[1:]
    assert ("| Heads from sums" in first, "| Heads from sums" in second) == (True, False)
    assert "A correction over the gradient is" in page
    assert ("correction over gradient" in first, "correction over gradient" in second) == (True, False)
    assert "Not run yet" not in page
    assert "\n| all | " in page  # among the leads, since all rows of the size have run
    for only, said in (({"all": few[1:]}, "rows that stand alone"), ({8: few}, "only names"), ({16: ["x"]}, "only")):
        with pytest.raises(SettingsError, match=said):
            BlockPlan.read({**settings, "only": only})


def test_a_twin_has_the_same_network_and_passes():
    settings = tiny()
    rows = [
        {**row, "settings": {"phases": [{"name": "train", "rounds": 9}]}} if row["name"] == "singleset" else row
        for row in settings["rows"]
    ]
    with pytest.raises(SettingsError, match="differ in passes"):
        BlockPlan.read({**settings, "rows": rows})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"singleset": {"network": {"frozen": 3}}, "fedavg": {"network": {"frozen": 3}}}, "freezes 3 stages"),
        ({"singleset": {"images": {"image_size": 48}}}, "rows of a block see the same images"),
        ({"singleset": WHOLE, "fedavg": WHOLE}, "'mean' joins rows that train all of the network with such"),
        ({"singleset": WHOLE, "fedavg": WHOLE, "mean": None, "joined": None}, "no row trains a head on the frozen"),
    ],
)
def test_rows_stand_on_a_frozen_encoder_or_train_all_of_it(changed, said):
    settings = tiny()
    rows = [
        {**row, "settings": merged(row.get("settings", {}), changed.get(row["name"]) or {})}
        for row in settings["rows"]
        if changed.get(row["name"], {}) is not None and "_" not in row["name"].removesuffix("_both")
    ]
    with pytest.raises(SettingsError, match=said):
        BlockPlan.read({**settings, "rows": rows})


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("whole_singleset", {"standard": True}, "from the plan's own weights"),
        ("whole_pooled", {"of": "whole_fedbn"}, "take a row that shares all"),
        ("sums", {"tune": [{"setting": "training.learning_rate", "values": [1, 2, 3]}]}, "train nothing"),
    ],
)
def test_what_a_row_does_not_do_is_refused(name, changed, said, tmp_path):
    settings = f3(tmp_path).model_dump(mode="json")
    settings["rows"] = [{**row, **changed} if row["name"] == name else row for row in settings["rows"]]
    with pytest.raises(SettingsError, match=said):
        BlockPlan.read(settings)


def test_a_value_with_which_training_diverged_is_not_chosen(tmp_path, monkeypatch):
    plan, ran = f3(tmp_path), BlockRuns._run

    def run(self, case, row, hospitals, seed, change):
        if change.get("training", {}).get("learning_rate") == 4e-3:
            raise DivergedError("the loss became nan.")
        return ran(self, case, row, hospitals, seed, change)

    monkeypatch.setattr(BlockRuns, "_run", run)
    chosen = BlockRuns(plan, tmp_path / "out").tuned("two", plan.row("singleset"))
    assert chosen["training"]["learning_rate"] < 4e-3
    tried = json.loads((tmp_path / "out" / "tuning" / "two" / "singleset.json").read_text())["tried"][0]["tried"]
    assert tried["0.004"] == -1


@pytest.fixture(scope="module")
def exits(tmp_path_factory):
    """FedProx, a head that travels, exits that stay: experiment, sets, hospitals, and where the images are."""
    cache = tmp_path_factory.mktemp("cache")
    plan = BlockPlan.read(tiny(cases=[{"name": "like", "title": "Like", "hospitals": {"site-1": 1, "site-4": 1}}]))
    more = {
        "row": "fedee_fedprox",
        "exchange": {"personal": "exits"},
        "network": {"exits": {"width": 8}},
        "report": {"page": False, "draws": 20},
    }
    experiment = plan.experiment_of(plan.row("fedavg"), 1, more)
    sets = read_sets(plan, experiment, cache, lambda what, done, of: None)
    dealt = {name: one.data for name, one in deal(plan.cases[0], sets, "all", 0).items()}
    return experiment, sets, dealt, cache


def test_training_in_memory_gives_the_bits_of_the_loop(exits, tmp_path):
    """Aggregate and answers are those of `run_loop` on the images."""
    experiment, _, dealt, cache = exits
    found = trained(experiment, dealt, tmp_path)

    images = {
        name: load_site_data(name, SiteDataSettings(phantom_images=64), experiment.images, 1, cache / name)
        for name in dealt
    }
    results = run_loop(experiment, images, tmp_path / "runs", "run")
    assert [step["digest"] for step in results["steps"] if step["task"] == "train"][-1] == found.digest
    for name, data in dealt.items():
        model, _ = read_tensors(tmp_path / "runs" / "run" / name / "final" / "model.safetensors")
        net = RowTrainer(experiment, data).model.net
        net.load_state_dict({key: one for key, one in model.items() if not key.startswith("encoder.")})
        logits = net.eval()(data.split("test").images)
        assert logits.equal(found.answers[name]["test"])
    assert goes_side_by_side(experiment)
    agrees(found, trained_side_by_side(experiment, dealt))


@pytest.mark.parametrize(("rule", "fits"), [("samples", True), ("uniform", True), ("uaw", False)])
def test_a_rule_that_asks_more_of_a_site_than_its_images_is_not_for_the_stack(rule, fits):
    """UAW weighs by a theta that only the product's own training works out."""
    words = {"row": "fedavg", "classes": ["no_dr", "mild"], "exchange": {"personal": "nothing"}}
    adam = {"optimizer": "adam", "optimizer_state": "keep", "threads": 1, "device": "cpu"}
    frozen = {"frozen": "all", "frozen_cache": "lenient"}
    network = {"encoder": "efficientnet_lite0", "head": {"layout": "linear"}, **frozen}
    asked = {**words, "training": adam, "network": network, "aggregation": {"rule": rule}}
    assert goes_side_by_side(Experiment.resolve(asked)) == fits


def test_a_network_that_trains_whole_has_the_bits_of_the_loop(tmp_path):
    """FedBN: hospitals of five grades and of four, heads and BatchNorm at home, photographs mirrored."""
    plan = f3(tmp_path)
    experiment = plan.experiment_of(plan.row("whole_fedbn"), 1, {"report": {"page": False, "draws": 20}})
    dealt = pictures(plan, experiment, tmp_path)
    assert len({data.scheme.num_classes for data in dealt.values()}) == 2
    found = trained(experiment, dealt, tmp_path)
    assert not goes_side_by_side(experiment)
    results = run_loop(experiment, dealt, tmp_path / "runs", "run")
    assert [step["digest"] for step in results["steps"] if step["task"] == "train"][-1] == found.digest
    for name, data in dealt.items():
        model, _ = read_tensors(tmp_path / "runs" / "run" / name / "final" / "model.safetensors")
        said = LocalTrainer(experiment, data).answers(model, {}, data.split("test"))
        assert said.logits.equal(found.answers[name]["test"])


def test_a_whole_network_on_all_images_has_a_hospitals_rates_and_sees_all_hospitals_images_together(
    tmp_path, monkeypatch
):
    plan = f3(tmp_path)
    experiment = plan.experiment_of(plan.row("whole_pooled"), 1, {})
    dealt = pictures(plan, experiment, tmp_path, 18)
    rates, passes = [], []

    class Noted(RoundOptimiser):
        def step(self, loss, correction, clock):
            rates.append(self.at(clock))
            super().step(loss, correction, clock)

    monkeypatch.setattr(one_place, "RoundOptimiser", Noted)
    normalise = functional.batch_norm

    def noted(images, mean, variance, weight, bias, training, *rest):
        if training:
            passes.append(len(images))
        return normalise(images, mean, variance, weight, bias, training, *rest)

    monkeypatch.setattr(functional, "batch_norm", noted)
    answers = pooled(experiment, dealt).answers
    assert {key.split(".")[0] for key in rates[0]} == {"encoder", "0"}  # one head, of the classes that all share
    rate = experiment.training.learning_rate
    for key, found in rates[0].items():
        assert found == pytest.approx(rate / 10 if key.startswith("encoder.") else rate)
    images = sum(data.counts["train"] for data in dealt.values())
    assert set(passes) == {32, images - 32}
    assert {name: said["test"].shape[1] for name, said in answers.items()} == {"site-1": 5, "site-4": 4}


def test_several_draws_at_a_time_give_the_results_of_one_after_the_other(tmp_path):
    plan, told = f3(tmp_path), []
    runs = 2 * len(plan.rows)
    for jobs in (1, 2):
        assert run_block(plan, tmp_path / str(jobs), jobs, told.append) == {}
    names = [one.words.split(":")[0] for one in told]
    assert sorted(names[:runs]) == sorted(names[runs:])
    assert {one.done for one in told[runs:]} == set(range(1, runs + 1))

    def records(jobs):
        files = [file for kind in ("results", "tuning") for file in (tmp_path / jobs / kind).rglob("*.json")]
        read = {str(file.relative_to(tmp_path / jobs)): json.loads(file.read_text()) for file in files}
        return {name: {**one, "seconds": 0} for name, one in read.items()}

    assert records("1") == records("2")
    assert len(records("1")) == runs + 1
    whole = [one for name, one in records("1").items() if "/whole_" in name]
    assert {one["passes"] for one in whole} == {2}
    by_row = {one["row"]: one for one in whole}
    assert by_row["whole_singleset"]["bytes_up"] == 0
    # A head of 5 classes over 1,280 features travels with all, or nothing of it and of BatchNorm.
    assert by_row["whole_fedavg"]["bytes_up"] > by_row["whole_fedbn"]["bytes_up"] > 2 * 4 * 3e6


def f3(folder):
    """Whole networks and frozen ones in a tiny form, one of them tuned."""
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump({"data": {"scheme": "normal_3stages", "phantom_images": 64}}))
    settings = merged(preset("f3"), {**TINY, "sites": {"site-1": None, "site-4": str(file)}, "sizes": ["all"]})
    settings["cases"] = [{"name": "two", "title": "Two", "hospitals": {"site-1": 1, "site-4": 1}}]
    settings["only"] = {}
    values = [{"setting": "training.learning_rate", "values": [1e-3, 2e-3, 4e-3], "factor": 2, "grows": 0}]
    tuned = {"singleset": values}
    return BlockPlan.read(
        {**settings, "rows": [{**row, "tune": tuned.get(row["name"], [])} for row in settings["rows"]]}
    )


def pictures(plan, experiment, folder, size="all"):
    sets = read_sets(plan, experiment, folder / "cache", lambda what, done, of: None, PIXELS)
    return {name: one.data for name, one in deal(plan.cases[0], sets, size, 0).items()}


def agrees(slow, fast):
    """Two ways to train gave the same answers, to rounding, and sent as much."""
    assert (slow.up, slow.down) == (fast.up, fast.down)
    for name, said in slow.answers.items():
        assert torch.allclose(said["test"], fast.answers[name]["test"], atol=1e-4)
        assert said["test"].abs().max() > 1e-2


@pytest.mark.parametrize("name", ["ditto", "scaffold"])
def test_what_is_kept_beside_a_model_is_kept_side_by_side_as_it_is_alone(name, tmp_path):
    """Ditto's own models and SCAFFOLD's variates, at hospitals of unlike numbers of batches."""
    plan = BlockPlan.read(tiny(cases=[{"name": "like", "title": "Like", "hospitals": {"site-1": 2, "site-4": 1}}]))
    fedavg = plan.row("fedavg").settings
    row = plan.row("fedavg").model_copy(update={"settings": {**fedavg, "row": name}})
    experiment = plan.experiment_of(row, 1, {})
    assert goes_side_by_side(experiment)
    assert experiment.tune.along == (name == "ditto")
    sets = read_sets(plan, experiment, tmp_path / "cache", lambda what, done, of: None)
    dealt = {name: one.data for name, one in deal(plan.cases[0], sets, 18, 0).items()}
    assert len({data.counts["train"] for data in dealt.values()}) > 1
    slow, fast = trained(experiment, dealt, tmp_path), trained_side_by_side(experiment, dealt)
    agrees(slow, fast)
    if name == "ditto":
        assert slow.correction is fast.correction is None
    else:
        assert slow.correction == pytest.approx(fast.correction, rel=1e-3)
        assert slow.correction > 0


def test_no_stage_outweighs_another_by_its_scale(exits):
    _, sets, dealt, _ = exits
    one = sets["site-1"]
    assert sum(one.early) + one.pooled == dealt["site-1"].split("train").images.shape[1]
    scaled = with_stages(dealt["site-1"], (*one.early, one.pooled)).split("train").images
    for part in torch.split(scaled, [*one.early, one.pooled], dim=1):
        assert part.var(0, correction=0).mean().item() == pytest.approx(1, abs=1e-3)


def test_less_is_better_in_tuning_and_in_tests():
    """AURC, ECE, Brier score and log loss: the lower one is chosen, and the lower row leads."""
    good, bad = ({"site": {"error_auroc": 0.7, "aurc": value}} for value in (0.2, 0.4))
    assert worth(good) > worth(bad)
    assert worth({"site": {"error_auroc": 0.8, "aurc": None}}) == 0.8
    low, high = (
        {draw: {"sites": {"site": {"test": {"aurc": value + draw / 100}}}, "drawn": {}} for draw in range(3)}
        for value in (0.2, 0.4)
    )
    test, _ = difference({"low": low, "high": high}, "low", "high", "aurc")
    assert test.mean == pytest.approx(0.2)


def test_a_row_helps_only_where_it_beats_every_row_alone():
    plan = BlockPlan.read(tiny(draws=5, primary=1, figures=["kappa"]))

    def runs(**levels):
        return {
            name: {
                draw: {
                    "sites": {
                        "site-1": {"test": dict.fromkeys(plan.figures, level + 0.001 * draw * (name == "fedavg"))}
                    },
                    "drawn": {},
                    "passes": 20,
                    "bytes_up": 0,
                }
                for draw in range(5)
            }
            for name, level in levels.items()
        }

    alone = {"majority": 0.5, "probe": 0.7, "singleset": 0.6, "pooled": 0.9}
    (wins,) = comparisons(plan, runs(**alone, fedavg=0.75))["fedavg"]
    assert wins.helps
    assert wins.control == "probe"
    (behind,) = comparisons(plan, runs(**alone, fedavg=0.65))["fedavg"]
    assert not behind.helps
    assert behind.p == 1
    with pytest.raises(StateError, match="singleset"):
        figure_table(plan, runs(majority=0.5, probe=0.7, pooled=0.9, fedavg=0.8))


def test_rare_grades_weigh_as_much_as_common_ones_where_grades_are_even(exits):
    """By Bayes: of a model that is right about a hospital's mix of grades, what is right about an even mix."""
    _, _, dealt, _ = exits
    data = dealt["site-1"]
    counts = np.bincount(data.split("train").labels.numpy(), minlength=data.scheme.num_classes) + 1
    assert counts.max() > 2 * counts.min()
    likelihood = np.random.default_rng(0).uniform(0.1, 1, (6, len(counts)))
    odds = likelihood * counts
    odds /= odds.sum(1, keepdims=True)
    found = at_even_grades(Experiment.resolve({"row": "singleset"}), Said(odds, 1 - odds.max(1), odds), data)
    assert found.probabilities == pytest.approx(likelihood / likelihood.sum(1, keepdims=True))
    assert found.probabilities.argmax(1).tolist() != odds.argmax(1).tolist()


def test_what_is_joined_is_the_mean_of_the_heads_each_at_the_temperature_of_all_hospitals():
    draw = np.random.default_rng(3)
    labels = {"a": draw.integers(0, 3, 30), "b": draw.integers(0, 2, 20)}
    truth = {name: np.eye(int(one.max()) + 1)[one] for name, one in labels.items()}
    logits = [
        {name: scale * (one + draw.normal(0, 0.8, one.shape)) for name, one in truth.items()} for scale in (9.0, 0.5)
    ]
    said = joined([{n: (softmax(z, axis=1),) * 2 for n, z in part.items()} for part in logits], labels)

    def loss(part, value):
        return -sum(log_softmax(z[at] / value)[labels[name][at]] for name, z in part.items() for at in range(len(z)))

    grid = np.geomspace(0.05, 20, 2000)
    best = [grid[np.argmin([loss(part, value) for value in grid])] for part in logits]
    assert best[0] > 2
    assert best[1] < 1
    for name in labels:
        expected = softmax(sum(part[name] / value for part, value in zip(logits, best, strict=True)) / 2, axis=1)
        assert said[name].probabilities == pytest.approx(expected, abs=0.005)
        assert said[name].uncertainty.tolist() == pytest.approx((1 - said[name].probabilities.max(1)).tolist())


def test_a_tiny_block_runs_goes_on_and_is_rendered(tmp_path):
    plan = tmp_path / "plan.yaml"
    rows = tiny()["rows"]
    rows[2] = {**rows[2], "tune": [{"setting": "training.learning_rate", "values": [1e-6, 3e-6, 9e-6], "grows": 1}]}
    plan.write_text(yaml.safe_dump({**TINY, "rows": rows}))
    out = tmp_path / "out"
    words = ["benchmark", "e1", "--plan", plan, "--phantoms", "site-1,site-4", "--out", out]

    def run(*more):
        return CliRunner().invoke(main, [str(word) for word in (*words, *more)])

    first = run("--store", tmp_path / "packed.jsonl.gz")
    assert first.exit_code == 0, first.output
    assert "22 of 22: " in first.output
    assert not any(name.startswith("cache") for name in read_packed(tmp_path / "packed.jsonl.gz"))
    page = (out / "page.md").read_text()
    assert "Heads from sums: mean of own and federated head | together |" in page
    assert "| 4 \\* |" in page  # two members, twice the passes
    assert "beats every row alone" in page
    held = {row["name"]: out / "results" / "like" / "16" / row["name"] / "draw-0.json" for row in rows}
    sites = {name: json.loads(file.read_text())["sites"] for name, file in held.items()}
    assert sites["singleset_temperature"] == sites["singleset"]  # too few images for any other temperature than 1
    assert len({json.dumps(sites[name]) for name in ("mean", "joined", "fedavg", "sums_both")}) == 4
    assert "Every grade is in the sums here, however few its patients." in page
    tuned = json.loads((out / "tuning" / "like" / "singleset.json").read_text())["tried"][0]
    assert len(tuned["tried"]) == 4  # the best stood at the end, and the grid grew

    one = out / "results" / "like" / "16" / "fedavg" / "draw-1.json"
    before = json.loads(one.read_text())
    assert "| images | by | best alone |" in page
    one.unlink()
    assert run("--render").exit_code == 0
    uneven = (out / "page.md").read_text()  # a mean of one draw is not set beside means of two
    assert "| images | by | best alone |" not in uneven
    assert "at no size all rows have run in all draws: Like." in uneven
    again = run()
    assert again.output.count(" of 22: ") == 1
    assert {**json.loads(one.read_text()), "seconds": 0} == {**before, "seconds": 0}
    assert (out / "page.md").read_text() == page

    (out / "results" / "like" / "16" / "probe" / "draw-0.json").unlink()
    assert run("--render").exit_code == 0
    assert "Not run yet: Majority answer (1 draw)" in (out / "page.md").read_text()  # that draw is left out for all
    (out / "results" / "like" / "16" / "probe" / "draw-1.json").unlink()
    assert run("--render").exit_code == 0
    assert "Not shown: these controls have not run in every draw yet: probe." in (out / "page.md").read_text()

    plan.write_text(yaml.safe_dump({**TINY, "rows": rows, "least": 3}))
    assert "begun with other settings (least)" in run().output


def test_small_grades_stay_out_of_a_row_that_says_so(tmp_path, caplog):
    settings = tiny(sizes=["all"], draws=1, figures=["auc", "kappa", "ece"], least=20)
    names = ("majority", "probe", "singleset", "sums_both", "fedavg", "pooled")
    rows = [row for row in settings["rows"] if row["name"] in names]
    both = next(row for row in rows if row["name"] == "sums_both")
    rows.append({**both, "name": "held", "title": "Mean, with the default policy", "small_grades": False})
    told = []
    assert not run_block(BlockPlan.read({**settings, "rows": rows}), tmp_path, 1, told.append)
    left = [one.getMessage() for one in caplog.records if "of fewer patients than min_count" in one.getMessage()]
    assert 0 < len(left) <= 3  # once for each hospital that has such a grade: in one of the two rows of sums alone
    folder = tmp_path / "results" / "like" / "all"
    held, every = (json.loads((folder / name / "draw-0.json").read_text()) for name in ("held", "sums_both"))
    assert held["sites"] != every["sites"]
    write_block_page(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "But for the rows with the default policy, every grade is in the sums here" in page
    assert "So they do not count every grade at every hospital. Left out: " in page


def test_grades_that_are_left_out_are_counted_in_hospitals():
    case = BlockCase(name="four", title="Four", hospitals={"kermany": 3, "octdl": 1})
    grades = ["normal", "amd", "dme"]
    sets = {
        "kermany": {"grades": grades, "images": {"test": [117, 127, 6]}},
        "octdl": {"grades": grades, "images": {"test": [67, 206, 18]}},
    }
    assert left_out(case, sets, 10) == "dme at 3 of 4 hospitals (6 test images of kermany)"
    assert left_out(case, sets, 6) == ""
    two = "dme at 4 of 4 hospitals (6 test images of kermany and 18 test images of octdl)"
    assert left_out(case, sets, 20) == two


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_is_that_of_the_stored_runs(name, tmp_path):
    unpack(ROOT / "benchmarks" / "results" / f"{name}.jsonl.gz", tmp_path / "out")
    write_block_page(tmp_path / "out", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / f"{name}.md").read_text()


def test_the_page_has_the_prose_of_todays_plan(tmp_path):
    """Prose that was mended after the runs stands on the page; that of the store, from when they began, does not."""
    unpack(ROOT / "benchmarks" / "results" / "f2.jsonl.gz", tmp_path / "out")
    plan = tmp_path / "out" / "plan.json"
    stored = json.loads(plan.read_text())
    for name in ("f2", "my_own"):
        old = {"title": f"Old {name}", "about": [f"Old question of {name}."], "reading": [f"Old reading of {name}."]}
        plan.write_text(json.dumps({**stored, **old, "name": name}))
        write_block_page(tmp_path / "out", tmp_path / f"{name}.md")
    page, today = (tmp_path / "f2.md").read_text(), preset("f2")
    assert "Old" not in page
    assert all(words in page for words in (today["title"], *today["about"], *today["reading"]))
    own = (tmp_path / "my_own.md").read_text()  # the package has no plan of that name
    assert all(words in own for words in ("Old my_own", "Old question of my_own.", "Old reading of my_own."))
