"""A row's network on all sites' images in one place, and that every paper's plan has its controls."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.papers.test_runner import SMALL

from fedretina.errors import SettingsError, StateError, StoppedError, TrainingError
from fedretina.local.trainer import LocalTrainer
from fedretina.settings.plan import Plan
from fedretina.storage import read_tensors
from fedretina_papers.choices import passes
from fedretina_papers.one_place import rounds_in_one_place
from fedretina_papers.one_place_run import train_in_one_place
from fedretina_papers.one_run import sites_of
from fedretina_papers.paper_size.plan import PaperSizePlan
from fedretina_papers.plan import BenchmarkPlan, preset
from fedretina_papers.runner import run_benchmark
from killed import killed_at_every_write

PLANS = ("feduaa", "oct", "fedee", "fedee-oct", "fedee-dermoscopy", "fedee-heart", "fedee-activity")
TOGETHER = {
    "name": "one_place",
    "row": "fedbn",
    "in_one_place": True,
    "settings": {"exchange": {"batchnorm": "shared_all"}},
}
EXITS = {
    "name": "one_place",
    "row": "fedee",
    "in_one_place": True,
    "settings": {"network": {"exits": {"after": [0]}, "head": {"layout": "linear_bn_relu_linear"}}},
}


def plan(*rows, **experiment):
    words = {**SMALL, "rows": list(rows), "reference": rows[0] if isinstance(rows[0], str) else rows[0]["name"]}
    return BenchmarkPlan.read({**words, "experiment": {**SMALL["experiment"], **experiment}, "noise": []})


def one_batch(settings, steps=2):
    """Settings under which order and augmentation, which are drawn by name, play no part: a batch holds all images."""
    training = {"batch_size": 24, "learning_rate": 0.05, "epochs": 1, "optimizer": "sgd", "threads": 1}
    fixed = {"augment": {"flip": False, "rotate_degrees": 0}, "training": training}
    made = plan(settings, phases=[{"name": "train", "rounds": steps}], **fixed)
    return made.experiment_of(made.rows[0], 1, {})


@pytest.mark.slow
@pytest.mark.parametrize("row", [TOGETHER, EXITS], ids=["one_head", "early_exits"])
def test_over_one_site_it_is_a_federation_of_one(row, little_encoder, tmp_path):
    data = sites_of(plan("fedbn"), tmp_path, 1)["site-1"]
    experiment = one_batch(row, steps=1)
    trainer = LocalTrainer(experiment, data)
    begun = {key: tensor.clone() for key, tensor in trainer.model.net.state_dict().items()}
    shared = {key: begun[key] for key in trainer.partition.shared}
    step = next(one for one in Plan.of(experiment) if one.task == "train")
    update = trainer.train(shared, trainer.initial(shared, step), step)
    expected = trainer.state({**shared, **update.tensors}, update.snapshot.tensors)

    trainers = {"site-1": LocalTrainer(experiment, data)}
    *_, last = rounds_in_one_place(experiment, {"site-1": data}, trainers)
    found = trainers["site-1"].state(*last.models["site-1"])
    assert found.keys() == expected.keys()
    apart, moved = (
        max(float((other[key].double() - tensor.double()).abs().max()) for key, tensor in found.items())
        for other in (expected, begun)
    )
    assert apart < 0.01 * moved  # images stand in another order in the batch, so that sums round otherwise
    heads = [key for key in found if key.endswith(".weight") and key.startswith(("head.", "exits."))]
    assert all(not torch.equal(found[key], begun[key]) for key in heads)
    assert any(key.startswith("exits.") for key in heads) == (row is EXITS)


def test_fewer_images_than_a_batch_are_a_sentence(little_encoder, tmp_path):
    sites = sites_of(plan("fedbn"), tmp_path, 1)
    experiment = one_batch(TOGETHER)
    many = experiment.model_copy(update={"training": experiment.training.model_copy(update={"batch_size": 99})})
    trainers = {name: LocalTrainer(many, data) for name, data in sites.items()}
    with pytest.raises(TrainingError, match="lower training"):
        next(rounds_in_one_place(many, sites, trainers))


@pytest.mark.slow
@pytest.mark.parametrize("row", [TOGETHER, EXITS], ids=["one_head", "early_exits"])
def test_what_travels_is_one_and_what_stays_is_one_a_site(row, little_encoder, tmp_path):
    sites = sites_of(plan("fedbn"), tmp_path, 1)
    assert len({data.scheme.grades for data in sites.values()}) == 2
    experiment = one_batch(row, steps=3)
    told = []
    train_in_one_place(experiment, sites, tmp_path, lambda done, of: told.append((done, of)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    first, second = (read_tensors(tmp_path / name / "final" / "model.safetensors")[0] for name in sites)
    heads = {key for key in first if key.startswith(("head.", "exits."))}
    assert {key.partition(".")[0] for key in heads} == ({"head", "exits"} if row is EXITS else {"head"})
    assert all(torch.equal(first[key], second[key]) for key in first if key not in heads)
    assert any(first[key].shape != second[key].shape for key in heads)
    equal = {"north": sites["site-1"], "south": sites["site-1"]}
    trainers = {name: LocalTrainer(experiment, data) for name, data in equal.items()}
    *_, last = rounds_in_one_place(experiment, equal, trainers)
    (shared, own), (other_shared, others_own) = last.models.values()
    assert all(torch.equal(shared[key], other_shared[key]) for key in shared)
    assert any(not torch.equal(own[key], others_own[key]) for key in own)  # of equal grades, and yet its own
    results = json.loads((tmp_path / "server" / "results.json").read_text())
    assert [one["task"] for one in results["steps"]] == ["train"] * 3 + ["validate"]


@pytest.mark.slow
def test_the_model_that_is_kept_is_that_of_the_chosen_round(little_encoder, tmp_path, monkeypatch):
    sites = sites_of(plan("fedbn"), tmp_path, 1)
    experiment = one_batch(TOGETHER, steps=4)
    monkeypatch.setattr("fedretina_papers.one_place_run.chosen_step", lambda steps, among, choice: min(1, among[-1]))
    train_in_one_place(experiment, sites, tmp_path)
    chosen = json.loads((tmp_path / "server" / "results.json").read_text())["chosen"]
    trainers = {name: LocalTrainer(experiment, data) for name, data in sites.items()}
    rounds = {one.step.name: one.models for one in rounds_in_one_place(experiment, sites, trainers)}
    assert [*rounds].index(chosen) == 1
    for name, trainer in trainers.items():
        kept = read_tensors(tmp_path / name / "final" / "model.safetensors")[0]
        expected = trainer.state(*rounds[chosen][name])
        assert kept.keys() == expected.keys()
        assert all(torch.equal(kept[key], expected[key]) for key in kept)


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_killed_at_every_write_it_ends_with_the_same_bits(optimiser, little_encoder, tmp_path, monkeypatch):
    sites = sites_of(plan("fedbn"), tmp_path, 1)
    experiment = one_batch(TOGETHER, steps=4)
    more = {"momentum": 0.9} if optimiser == "sgd" else {"optimizer": "adam", "learning_rate": 0.01}
    experiment = experiment.model_copy(update={"training": experiment.training.model_copy(update=more)})
    # The second round's models are kept, while the third and fourth train on: both are needed to go on.
    chosen = "fedretina_papers.one_place_run.chosen_step"
    monkeypatch.setattr(chosen, lambda steps, among, choice: min(1, among[-1]))

    def content(folder):
        found = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        found.pop(Path("seconds.json"))
        return found

    train_in_one_place(experiment, sites, tmp_path / "once")
    assert json.loads((tmp_path / "once/seconds.json").read_text())["seconds"] > 0
    again, most = tmp_path / "again", []
    _, deaths = killed_at_every_write(
        lambda: train_in_one_place(experiment, sites, again),
        again,
        afterwards=lambda: most.append(len(list(again.glob("rounds/[0-9]*")))),
    )
    assert deaths > 12  # four rounds, two models, two histories, results and seconds, before and after each
    assert max(most) == 3  # the kept one, the last one, and the one that was written at that moment
    assert content(again) == content(tmp_path / "once")  # no round is left either
    assert json.loads((again / "seconds.json").read_text())["seconds"] is None


@pytest.mark.slow
def test_what_was_reached_with_other_images_is_refused(little_encoder, tmp_path):
    sites = sites_of(plan("fedbn"), tmp_path, 1)
    experiment = one_batch(TOGETHER)

    def stop(done, of):
        if done == 1:
            raise StoppedError("after a round")

    with pytest.raises(StoppedError):
        train_in_one_place(experiment, sites, tmp_path / "run", stop)
    others = {name: replace(data, fingerprint="another") for name, data in sites.items()}
    with pytest.raises(StateError, match="rounds of other images"):
        train_in_one_place(experiment, others, tmp_path / "run")


@pytest.mark.slow
def test_a_sites_only_image_in_a_batch_is_left_out_of_a_head_with_batchnorm(little_encoder, tmp_path):
    sites = sites_of(plan("fedbn"), tmp_path, 1)
    experiment = one_batch(TOGETHER, steps=1)
    training = experiment.training.model_copy(update={"batch_size": 2})
    pairs = experiment.model_copy(update={"training": training})
    trainers = {name: LocalTrainer(pairs, data) for name, data in sites.items()}
    (one,) = rounds_in_one_place(pairs, sites, trainers)  # half of the pairs hold an image of each site
    assert math.isfinite(one.loss)
    begun = trainers["site-1"].model.net.state_dict()["head.3.weight"]
    assert not torch.equal(one.models["site-1"][1]["head.3.weight"], begun)


@pytest.mark.slow
def test_a_plan_runs_it_measures_it_and_finds_it_done(little_encoder, tmp_path):
    both = plan("fedbn", TOGETHER)
    assert run_benchmark(both, tmp_path, 1, lambda told: None) == {}
    record = json.loads((tmp_path / "results" / "one_place" / "seed-1.json").read_text())
    assert record["loop_only"]
    assert record["bytes_up"] == record["bytes_down"] == 0
    assert record["rounds"] == len(record["history"]) == 2
    assert all(0 <= one["test"]["auc"] <= 1 for one in record["sites"].values())
    again = []
    assert run_benchmark(both, tmp_path, 1, again.append) == {}
    assert again == []


FINE = TOGETHER["settings"]


@pytest.mark.parametrize(
    ("row", "settings", "said"),
    [
        ("fedbn", {}, "shares all of its encoder"),
        ("fedbn", {**FINE, "tune": {"epochs": 1}}, "trains all of it on all labels"),
        ("fedbn", {**FINE, "phases": [{"name": "train", "rounds": 1, "label_share": 0.5}]}, "on all labels"),
        ("fedbn", {**FINE, "phases": [{"name": "one", "rounds": 1}, {"name": "two", "rounds": 1}]}, "of one phase"),
        ("fedbn", {"exchange": {"batchnorm": "shared_all", "personal": "bias"}}, "shares whole parts"),
        ("singleset", {}, "shares whole parts"),
        ("fedrep", FINE, "trains all of it"),
        ("scaffold", FINE, "without a correction"),
        ("mdt", FINE, "trains all of it"),
    ],
)
def test_what_cannot_be_in_one_place_is_a_sentence(row, settings, said):
    classes = {"classes": ["no_dr", "severe"]} if settings.get("exchange", {}).get("personal") == "bias" else {}
    with pytest.raises(SettingsError, match=said):
        plan({"name": "one_place", "row": row, "in_one_place": True, "settings": {**settings, **classes}})


TUNED = tuple(f"fedee_b{size}_lr{rate}" for size in (16, 32, 64) for rate in ("0001", "0003", "0005", "001"))
APART = {"feduaa": ("fedrep",), "paper-size": ("fedrep",), "fedee-activity": TUNED}
"""Rows whose own settings are what is studied; their network alone in as many passes has the plan's."""


@pytest.mark.parametrize("name", [*PLANS, "paper-size"])
def test_every_row_has_its_network_alone_in_as_many_passes_and_in_one_place(name):
    words = preset(name)
    size = [PaperSizePlan.read({**words, "sites": {}})] if name == "paper-size" else []
    for one in [bench for each in size for bench in each.benches.values()] or [BenchmarkPlan.read(words)]:
        made = {choice.name: one.experiment_of(choice, one.seeds_of(choice)[0], {}) for choice in one.rows}
        place = [choice for choice in one.rows if made[choice.name].pooled or choice.in_one_place]
        alone = [choice for choice in one.rows if choice not in place and not made[choice.name].shares]
        lacking = []
        for choice in one.rows:
            ours = made[choice.name]
            if choice in place or not ours.shares or _only_costs(choice):
                continue
            like, together = (
                [made[other.name] for other in those if set(one.trained_on(choice)) <= set(one.trained_on(other))]
                for those in (alone, place)
            )
            like = [other for other in like if _network(other) == _network(ours) and passes(other) == passes(ours)]
            if choice.name not in APART.get(name, ()):
                like = [other for other in like if _trained(other) == _trained(ours)]
            if not like or not any(_network(other) == _network(ours) for other in together):
                lacking.append(choice.name)
        assert lacking == ["probe"]  # it shares sums, answers by its own head, and is a control itself


def _network(experiment):
    """What answers; MDT fits its temperatures to the network of another row, when that has trained."""
    network = experiment.network.model_copy(update={"calibrator": False})
    held = (network, experiment.objective, experiment.evaluation)
    return [one.model_dump_json() for one in held]


def _trained(experiment):
    return [one.model_dump_json() for one in (experiment.training, experiment.augment)]


def _only_costs(choice):
    """Whether a row is of the OCT paper's Table 9, or of another network in Table 6, of which costs alone are told."""
    return choice.settings.get("network", {}).get("weights") == {"source": "none"}
