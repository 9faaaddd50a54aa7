"""The verdict at a site: the own head against scikit-learn, the twin against a run of one site, and what is kept."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from fedretina import storage
from fedretina.aggregation.coordinator import Coordinator
from fedretina.aggregation.results import results_table
from fedretina.cli import main
from fedretina.errors import DataError, SettingsError, TrainingError
from fedretina.evaluation import verdict as core
from fedretina.evaluation.verdict import FEDERATED, OWN, TWIN
from fedretina.exchange.payload import Order, Stamp
from fedretina.local import verdict as at_site
from fedretina.local.features import FrozenEncoder
from fedretina.local.site import Site
from fedretina.local.trainer import LocalTrainer
from fedretina.local.twin import twin_settings
from fedretina.local.verdict import own_settings, ridge_head
from fedretina.loop import run_loop
from fedretina.prediction.predictor import Predictor
from fedretina.rows import ROWS
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from killed import killed_at_every_write


def kept_by_validation(monkeypatch, name):
    """Tiny splits have too few patients for a choice: let validation prefer one model."""
    real = core.choose
    monkeypatch.setattr(
        core, "choose", lambda answers, truth: real(answers, truth)._replace(kept=name, reason="better")
    )


def folder_beside(root):
    return final(root, "site-1") / FEDERATED


def final(root, site, run="r"):
    return root / run / site / "final"


def verdict_of(folder):
    return storage.read_json(folder / "figures.json")["verdict"]


def test_the_own_head_is_a_ridge_regression_on_standardised_features():
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(2)
    labels = rng.integers(0, 4, 60)
    features = rng.normal(size=(60, 12)) * rng.uniform(0.1, 30, 12) + 50 * rng.normal(size=12)
    features[:, :3] += 3 * np.eye(4)[labels][:, :3]
    features[:, 7] = 4.2  # says nothing, and has no deviation to divide by
    layer, strength = ridge_head(torch.from_numpy(features).float(), torch.from_numpy(labels), 4)
    scaled = StandardScaler(with_std=False).fit(features)
    scale = np.sqrt(features.var(0).mean())
    slow = Ridge(alpha=strength).fit(scaled.transform(features) / scale, np.eye(4)[labels])
    fresh = rng.normal(size=(9, 12)) * 10 + features.mean(0)
    fresh[:, 7] = 4.2
    got = torch.from_numpy(fresh).float() @ layer["head.0.weight"].T + layer["head.0.bias"]
    assert got.numpy() == pytest.approx(10 * slow.predict(scaled.transform(fresh) / scale), abs=1e-3)
    assert np.argmax(features @ layer["head.0.weight"].numpy().T + layer["head.0.bias"].numpy(), 1).tolist() == (
        np.argmax(slow.predict(scaled.transform(features) / scale), 1).tolist()
    )


@pytest.mark.parametrize("row", ROWS)
def test_what_a_control_is_made_of_can_be_read_from_its_card(row):
    experiment = Experiment.resolve({"row": row})
    again = Experiment.model_validate(own_settings(experiment).agreed())
    assert again.network.encoder == experiment.network.encoder
    if experiment.exchange.personal == "everything" or experiment.sums is not None:
        why = "each site is its own twin" if experiment.sums is None else "is the own head"
        with pytest.raises(SettingsError, match=why):
            Experiment.resolve({"row": row, "verdict": "twin"})
    else:
        alone = Experiment.model_validate(twin_settings(Experiment.resolve({"row": row, "verdict": "twin"})).agreed())
        assert (alone.exchange.personal, alone.verdict, alone.training) == ("everything", "off", experiment.training)
        assert [phase.rounds for phase in alone.phases] == [phase.rounds for phase in experiment.phases]


def test_a_run_without_labels_has_no_twin(tiny):
    with pytest.raises(SettingsError, match="no answers to compare"):
        tiny(row="oct_moco_fedavg", verdict="twin", phases=[{"name": "pretrain", "rounds": 1}])


@pytest.mark.slow
def test_the_own_model_is_kept_with_the_federated_one_beside_it(tiny, phantoms, tmp_path, monkeypatch):
    plain = tiny(verdict="off", evaluation={"auc_input": "belief"}, report={"draws": 40, "page": True})
    data = phantoms(plain, "site-1", "site-3")
    before = run_loop(plain, data, tmp_path, "off")
    kept_by_validation(monkeypatch, OWN)
    experiment = plain.model_copy(update={"verdict": "own"})
    results = run_loop(experiment, data, tmp_path, "r")
    # What leaves tells of the federated model, whichever is kept, to the bit what it was.
    assert results["sites"] == before["sites"]
    assert (results["model_digest"], before["verdicts"]) == (before["model_digest"], {})
    for site in data:
        folder = final(tmp_path, site)
        model = Predictor.load(folder)
        test = data[site].split("test")
        said = model.logits(test.images)
        card, report = (storage.read_json(folder / name) for name in ("card.json", "report.json"))
        assert (card["model"], report["model"], card["theta"]) == (OWN, OWN, None)
        assert card["verdict"]["kept"] == OWN
        assert card["test"]["accuracy"] == pytest.approx(np.mean((said.argmax(1) == test.labels).numpy()))
        # The head is the ridge's, on the features of the encoder as the run starts with it.
        frozen = FrozenEncoder(experiment, data[site])
        train = data[site].split("train")
        layer, _ = ridge_head(frozen.features(train), train.labels, data[site].scheme.num_classes)
        scores = frozen.features(test) @ layer["head.0.weight"].T + layer["head.0.bias"]
        sharp = float((scores / said).median())
        assert scores.numpy() == pytest.approx(sharp * said.numpy(), abs=1e-3 * float(scores.abs().max()))
        # The federated model beside it is the one of a run without a verdict.
        beside, old = (
            storage.read_tensors(path / "model.safetensors")[0]
            for path in (folder / FEDERATED, final(tmp_path, site, "off"))
        )
        assert beside.keys() == old.keys()
        assert all(torch.equal(beside[key], old[key]) for key in old)
        assert torch.equal(
            Predictor.load(folder / FEDERATED).logits(test.images),
            Predictor.load(final(tmp_path, site, "off")).logits(test.images),
        )
        assert (
            storage.read_json(folder / FEDERATED / "report.json")["figures"]
            == (storage.read_json(final(tmp_path, site, "off") / "report.json")["figures"])
        )
        page, card_page = (folder / "report.html").read_text(), (folder / "card.md").read_text()
        for words in (page, card_page):
            assert "Your own model is better on your validation images" in words
            assert "own head on the frozen encoder" in words
        assert "which is not kept" in (folder / FEDERATED / "report.html").read_text()
        assert "not the one that is kept" in (folder / FEDERATED / "card.md").read_text()
        assert "your commonest grade in training" in page
    # The commands that use the model know no more than its folder.
    (tmp_path / "eyes").mkdir()
    Image.new("RGB", (40, 40), (120, 60, 20)).save(tmp_path / "eyes" / "10_left.png")
    for folder, words in ((final(tmp_path, "site-1"), "and is kept"), (folder_beside(tmp_path), "not the one that is")):
        said = CliRunner().invoke(
            main,
            ["predict", str(tmp_path / "eyes"), "--model", str(folder), "--out", str(tmp_path / "list"), "--replace"],
        )
        assert said.exit_code == 0, said.output
        assert words in said.output
        assert words in (tmp_path / "list" / "worklist.html").read_text()
    # A run that went back and ends with another model that is kept leaves nothing of the old verdict.
    monkeypatch.undo()
    (final(tmp_path, "site-1") / "figures.json").unlink()
    aggregate, _ = storage.read_tensors(tmp_path / "r" / "server" / f"{results['chosen']}.safetensors")
    chosen = int(results["chosen"][-1])
    order = Order("finalise", Stamp("r", "finalise", 0, 0, results["digest"]), 1, chosen)
    Site(experiment, data["site-1"], tmp_path / "r" / "site-1").handle(order, aggregate)
    assert verdict_of(final(tmp_path, "site-1"))["kept"] == FEDERATED
    assert not folder_beside(tmp_path).exists()


def test_with_too_few_patients_the_federated_model_stays_and_the_own_one_is_only_measured(tiny, phantoms, tmp_path):
    experiment = tiny(verdict="own", report={"draws": 40, "page": True})
    data = phantoms(experiment, "site-1", "site-2")
    results = run_loop(experiment, data, tmp_path, "r")
    for site in data:
        folder = final(tmp_path, site)
        found = verdict_of(folder)
        assert (found["kept"], found["reason"], found["rival"]) == (FEDERATED, "too_few_patients", OWN)
        assert set(found["test"]["models"]) == {FEDERATED, OWN, "majority"}
        assert not (folder / FEDERATED).exists()
        figures = storage.read_json(folder / "figures.json")
        assert found["test"]["models"][FEDERATED]["accuracy"] == figures["test"]["accuracy"]["value"]
        assert found["test"]["models"][FEDERATED]["referable_auc"] == figures["test"]["referable_auc"]["value"]
        assert "a choice takes 10 validation patients" in (folder / "report.html").read_text()
        card = storage.read_json(folder / "card.json")
        rule, gated = (card["referral"]["test"][name]["k"] for name in ("load", "gated_load"))
        odd = card["look"]["patients"]["odd"]
        assert max(rule, odd) <= gated <= rule + odd
        assert "With the gate as well" in (folder / "card.md").read_text()
        # The server has it as a count alone; too few sites make not even that.
        assert figures["scalars"]["verdict"] in (-1, 0, 1)
    assert results["verdicts"] == {"sites": 2, "least": 5}
    assert "fewer than 5 of them sent a verdict" in (tmp_path / "r" / "server" / "report.html").read_text()
    assert "verdict" not in results_table(results)
    for path in (tmp_path / "r" / "server").rglob("*"):
        if path.suffix in (".json", ".html"):
            assert not re.search(r'"verdict": [-0-9]', path.read_text())  # the setting of that name is no number


def test_a_control_that_cannot_be_fitted_costs_no_site_its_model(tiny, phantoms, tmp_path, monkeypatch):
    def broken(*_):
        raise DataError("a feature is not finite.")

    monkeypatch.setattr(at_site, "own_model", broken)
    experiment = tiny(verdict="own", report={"page": True})
    results = run_loop(experiment, phantoms(experiment, "site-1"), tmp_path, "r")
    found = verdict_of(final(tmp_path, "site-1"))
    assert (found["rival"], found["outcome"], found["kept"]) == (None, None, FEDERATED)
    assert results["verdicts"] == {}
    assert "there was no model to compare with" in (final(tmp_path, "site-1") / "report.html").read_text()


TWINS = {
    "feduaa": {},
    "scaffold": {"sampling": {"fraction": 0.5}},
    "fedap": {"tune": {"epochs": 1}, "choice": {"model": "last"}},
    "mdt": {"choice": {"window": 2}},
    "oct_moco_scaffold": {
        "phases": [
            {"name": name, "rounds": 2, "training": {"epochs": 1, "batch_size": 8, "threads": 1}}
            for name in ("pretrain", "train")
        ],
        "network": {"contrast": {"hidden": 16, "width": 8}},
    },
}


@pytest.mark.parametrize("row", [pytest.param(row, marks=[] if row == "feduaa" else pytest.mark.slow) for row in TWINS])
def test_the_twin_is_the_run_of_a_site_alone_to_the_bit(row, tiny, phantoms, tmp_path):
    experiment = tiny(**merged({"row": row, "verdict": "twin"}, TWINS[row]))
    data = phantoms(experiment, "site-1", "site-2")
    run_loop(experiment, data, tmp_path, "r")
    alone = twin_settings(experiment)
    for site in data:
        run_loop(alone, {site: data[site]}, tmp_path, f"alone-{site}")
        twin, single = (
            storage.read_tensors(folder / "final" / "model.safetensors")[0]
            for folder in (tmp_path / "r" / site / "twin", tmp_path / f"alone-{site}" / site)
        )
        assert twin.keys() == single.keys()
        assert all(torch.equal(twin[key], single[key]) for key in twin)
        found = verdict_of(final(tmp_path, site))
        assert set(found["test"]["models"]) == {FEDERATED, OWN, TWIN, "majority"}
        figures = storage.read_json(tmp_path / f"alone-{site}" / site / "final" / "figures.json")["test"]
        assert found["test"]["models"][TWIN]["accuracy"] == figures["accuracy"]["value"]


def test_an_order_makes_up_for_no_more_than_a_round_of_the_twin(tiny, phantoms, tmp_path):
    experiment = tiny(verdict="twin", phases=[{"name": "train", "rounds": 4}])
    data = phantoms(experiment, "site-1", "site-2")
    coordinator = Coordinator(experiment, "r", tmp_path / "r" / "server")
    hosts = {name: Site(experiment, data[name], tmp_path / "r" / name) for name in data}
    path, done = tmp_path / "r" / "site-2" / "twin" / "twin.json", []
    while coordinator.done < len(coordinator.plan):
        there = ["site-1"] if coordinator.step.name in ("train-0000", "train-0001") else list(data)
        coordinator.begin(there)
        for name in there:
            order, down = coordinator.order(name), coordinator.down(name)
            coordinator.accept(name, hosts[name].handle(order, down))
        done.append(len(storage.read_json(path)["steps"]) if path.exists() else 0)
        coordinator.close()
    assert done == [0, 0, 1, 2, 2, 6]  # four rounds, a validation and an end
    run_loop(twin_settings(experiment), {"site-2": data["site-2"]}, tmp_path, "alone")
    late, alone = (
        storage.read_tensors(folder / "final" / "model.safetensors")[0]
        for folder in (path.parent, tmp_path / "alone" / "site-2")
    )
    assert late.keys() == alone.keys()
    assert all(torch.equal(late[key], alone[key]) for key in alone)


@pytest.mark.slow
def test_a_run_with_a_twin_killed_at_every_write_ends_with_the_same_bits(tiny, phantoms, tmp_path, monkeypatch):
    kept_by_validation(monkeypatch, TWIN)
    experiment = tiny(verdict="twin")
    data = phantoms(experiment, "site-1")
    run_loop(experiment, data, tmp_path, "whole")
    # What a run without a twin writes is killed in tests/test_loop.py.
    _, deaths = killed_at_every_write(
        lambda: run_loop(experiment, data, tmp_path, "cut"),
        tmp_path / "cut",
        lambda path: bool({"twin", "final"} & {*path.parts}),
    )
    assert deaths > 30
    for name in ("figures.json", "federated/card.json", "card.json"):
        whole, cut = (json.loads((final(tmp_path, "site-1", run) / name).read_text()) for run in ("whole", "cut"))
        assert {**whole, "run": ""} == {**cut, "run": ""}
    assert (tmp_path / "whole/site-1/twin/twin.json").read_text() == (
        tmp_path / "cut/site-1/twin/twin.json"
    ).read_text()
    model = Predictor.load(final(tmp_path, "site-1", "cut"))
    assert model.card["model"] == TWIN
    twin = storage.read_tensors(tmp_path / "cut" / "site-1" / "twin" / "final" / "model.safetensors")[0]
    kept = storage.read_tensors(final(tmp_path, "site-1", "cut") / "model.safetensors")[0]
    assert all(torch.equal(twin[key], kept[key]) for key in twin)


def test_the_twins_round_is_chosen_though_no_figure_of_the_site_may_leave(tiny, phantoms, tmp_path):
    experiment = tiny(verdict="twin", phases=[{"name": "train", "rounds": 3}])
    data = phantoms(experiment, "site-1")
    chosen, measured = {}, {}
    for name, least in (("open", 1), ("closed", 1000)):
        run_loop(experiment, {"site-1": replace(data["site-1"], min_count=least)}, tmp_path, name)
        folder = tmp_path / name / "site-1" / "twin"
        chosen[name] = storage.read_json(folder / "final" / "figures.json")["chosen"]
        steps = storage.read_json(folder / "twin.json")["steps"]
        measured[name] = [step["scalars"]["site-1"].get("val_auc") for step in steps]
    assert chosen["closed"] == chosen["open"]
    assert measured["closed"] == measured["open"]
    assert measured["closed"][1] is not None
    for step in storage.read_json(tmp_path / "closed" / "server" / "results.json")["steps"]:
        assert not {"val_auc", "val_accuracy", "patients"} & step["scalars"].get("site-1", {}).keys()


def test_a_twin_that_cannot_train_costs_no_round(tiny, phantoms, tmp_path, monkeypatch):
    experiment = tiny(verdict="twin")
    data = phantoms(experiment, "site-1")
    real = LocalTrainer.train

    def diverges(self, shared, *rest):
        if not shared:  # nothing came down: it is the twin
            raise TrainingError("the loss is not finite.")
        return real(self, shared, *rest)

    monkeypatch.setattr(LocalTrainer, "train", diverges)
    results = run_loop(experiment, data, tmp_path, "r")
    assert "site-1" in results["sites"]
    assert set(verdict_of(final(tmp_path, "site-1"))["test"]["models"]) == {FEDERATED, OWN, "majority"}
