"""What a block trains in memory has the product's bits, or agrees with it to rounding."""

import numpy as np
import pytest
import torch
from made_blocks import f3, tiny
from torch.nn import functional

from fedretina.data.site_data import load_site_data
from fedretina.local.supervised import RoundOptimiser, batches_an_epoch
from fedretina.local.trainer import LocalTrainer
from fedretina.loop import run_loop
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import SiteDataSettings
from fedretina.storage import read_tensors
from fedretina_papers import one_place
from fedretina_papers.blocks.figures import Said
from fedretina_papers.blocks.hospitals import deal, read_sets, with_stages
from fedretina_papers.blocks.joined import at_even_grades
from fedretina_papers.blocks.plan import PIXELS, BlockPlan
from fedretina_papers.blocks.side_by_side import goes_side_by_side, trained_side_by_side
from fedretina_papers.blocks.train import RowTrainer, pooled, trained


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
    assert found.correction > 0


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


def pictures(plan, experiment, folder, size="all"):
    sets = read_sets(plan, experiment, folder / "cache", lambda what, done, of: None, PIXELS)
    return {name: one.data for name, one in deal(plan.cases[0], sets, size, 0).items()}


def agrees(slow, fast):
    """Two ways to train gave the same answers and size of a correction, to rounding, and sent as much."""
    assert (slow.up, slow.down) == (fast.up, fast.down)
    assert fast.correction == (slow.correction and pytest.approx(slow.correction, rel=1e-5))
    for name, said in slow.answers.items():
        assert torch.allclose(said["test"], fast.answers[name]["test"], atol=1e-4)
        assert said["test"].abs().max() > 1e-2


@pytest.mark.parametrize("name", ["ditto", "fedprox", "scaffold"])
def test_what_is_beside_a_model_is_side_by_side_as_it_is_alone(name, tmp_path):
    """Ditto's own models, FedProx's pull and SCAFFOLD's variates, at hospitals of unlike numbers of batches."""
    plan = BlockPlan.read(tiny(cases=[{"name": "like", "title": "Like", "hospitals": {"site-1": 2, "site-4": 1}}]))
    fedavg = plan.row("fedavg").settings
    row = plan.row("fedavg").model_copy(update={"settings": {**fedavg, "row": name}})
    experiment = plan.experiment_of(row, 1, {})
    assert goes_side_by_side(experiment)
    assert experiment.tune.along == (name == "ditto")
    sets = read_sets(plan, experiment, tmp_path / "cache", lambda what, done, of: None)
    dealt = {name: one.data for name, one in deal(plan.cases[0], sets, 17, 0).items()}
    size, drops = experiment.training.batch_size, experiment.training.drop_last
    assert len({batches_an_epoch(data.counts["train"], size, drops) for data in dealt.values()}) > 1
    slow, fast = trained(experiment, dealt, tmp_path), trained_side_by_side(experiment, dealt)
    agrees(slow, fast)
    # What pulls Ditto's own models corrects nothing that travels: the product's curves do not tell it either.
    assert slow.correction is None if name == "ditto" else slow.correction > 0


def test_no_stage_outweighs_another_by_its_scale(exits):
    _, sets, dealt, _ = exits
    one = sets["site-1"]
    assert sum(one.early) + one.pooled == dealt["site-1"].split("train").images.shape[1]
    scaled = with_stages(dealt["site-1"], (*one.early, one.pooled)).split("train").images
    for part in torch.split(scaled, [*one.early, one.pooled], dim=1):
        assert part.var(0, correction=0).mean().item() == pytest.approx(1, abs=1e-3)


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
