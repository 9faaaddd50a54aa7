"""Early exits, dropout and a kept optimiser in the core loop, from the first round to the predictor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedretina import storage
from fedretina.errors import SettingsError
from fedretina.exchange.payload import tensors_digest
from fedretina.local.trainer import LocalTrainer
from fedretina.loop import run_loop
from fedretina.prediction.predictor import Predictor
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan
from killed import killed_at_write

EXITS = {"row": "fedee", "network": {"exits": {"width": 8}}}
SITES = ("site-1", "site-4")


def test_exits_stay_with_their_site_and_a_shared_head_travels(tiny, phantoms, tmp_path):
    # Both phantom hospitals have five grades.
    experiment = tiny(**EXITS, exchange={"personal": "exits"}, grades=5)
    results = run_loop(experiment, phantoms(experiment, *SITES), tmp_path, "a")
    assert set(results["sites"]) == set(SITES)
    models = [storage.read_tensors(tmp_path / "a" / site / "final" / "model.safetensors")[0] for site in SITES]
    same = {key for key in models[0] if torch.equal(models[0][key], models[1][key])}
    assert {key for key in models[0] if key.startswith("head.")} <= same
    assert not same & {key for key in models[0] if key.startswith("exits.")}
    sent, _ = storage.read_tensors(tmp_path / "a" / "server" / "train-0001.safetensors")
    assert not any(key.startswith("exits.") for key in sent)


@pytest.mark.parametrize("row", ["fedee", "fedee_dempster", "mc_dropout"])
def test_the_predictor_answers_as_finalise_did(row, tiny, phantoms, tmp_path):
    experiment = tiny(row=row, phases=[{"name": "train", "rounds": 1}])
    data = phantoms(experiment, "site-1")
    run_loop(experiment, data, tmp_path, "a")
    model, _ = storage.read_tensors(tmp_path / "a" / "site-1" / "final" / "model.safetensors")
    split = data["site-1"].split("test")
    found = LocalTrainer(experiment, data["site-1"]).answers({}, model, split).logits
    assert found.shape == (len(split.labels), 5, 5)  # four exits and the head, or five passes; five grades
    predictor = Predictor.load(tmp_path / "a" / "site-1")
    torch.testing.assert_close(predictor.logits(split.images[:3]), found[:3], rtol=1e-4, atol=1e-5)


def test_dropout_draws_the_same_whatever_was_drawn_before(tiny, phantoms, tmp_path):
    experiment = tiny(row="mc_dropout", phases=[{"name": "train", "rounds": 1}])
    data = phantoms(experiment, "site-1")
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        run_loop(experiment, data, tmp_path, f"run-{seed}")
        model, _ = storage.read_tensors(tmp_path / f"run-{seed}" / "site-1" / "final" / "model.safetensors")
        found.append(tensors_digest(model))
        assert torch.equal(torch.rand(3), torch.manual_seed(seed) and torch.rand(3))
    assert found[0] == found[1]
    plain = tiny(row="fedavg", network={"head": {"layout": "linear"}}, phases=[{"name": "train", "rounds": 1}])
    run_loop(plain, data, tmp_path, "plain")
    model, _ = storage.read_tensors(tmp_path / "plain" / "site-1" / "final" / "model.safetensors")
    assert tensors_digest(model) != found[0]


def test_a_kept_adam_is_one_long_run_and_a_fresh_one_is_not(tiny, phantoms, tmp_path):
    """Two rounds of one epoch at one site, nothing mixed: with Adam kept it is torch's own Adam over both epochs."""
    digests = {}
    for state in ("keep", "reset"):
        experiment = tiny(
            row="fedavg",
            network={"head": {"layout": "linear"}},
            training={"optimizer": "adam", "learning_rate": 0.003, "optimizer_state": state},
        )
        data = phantoms(experiment, "site-1")
        trainer, plan = LocalTrainer(experiment, data["site-1"]), Plan.of(experiment)
        shared = {key: value.clone() for key, value in trainer.model.net.state_dict().items()}
        shared = {key: shared[key].contiguous() for key in trainer.partition.travelling}
        kept = trainer.initial()
        for number in range(2):
            update = trainer.train(shared, kept, plan[number])
            shared, kept = update.tensors, update.snapshot
        digests[state] = tensors_digest({**shared, **kept.tensors})
        moments = [name for name in kept.memory if name.startswith("optimizer:exp_avg:")]
        assert len(moments) == (0 if state == "reset" else len(list(trainer.model.net.parameters())))
        if state == "keep":
            steps = {int(value) for name, value in kept.memory.items() if name.startswith("optimizer:step:")}
            assert steps == {2 * (data["site-1"].counts["train"] // experiment.training.batch_size)}
    assert digests["keep"] != digests["reset"]


def test_a_kept_optimiser_survives_a_restart_to_the_bit(tiny, phantoms, tmp_path):
    words = {"row": "scaffold", "training": {"optimizer": "adam", "learning_rate": 0.003, "optimizer_state": "keep"}}
    experiment = tiny(**words)
    data = phantoms(experiment, *SITES)
    whole = run_loop(experiment, data, tmp_path, "whole")
    killed_at_write(lambda: run_loop(experiment, data, tmp_path, "again"), 9)
    assert run_loop(experiment, data, tmp_path, "again")["sites"] == whole["sites"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"row": "fedavg", "evaluation": {"passes": 5}}, "estimator 'softmax' reads one alone"),
        ({"row": "fedee", "evaluation": {"passes": 5}}, "no dropout"),
        ({"row": "fedavg", "evaluation": "softmax_disagreement"}, "asks 2 members or more"),
        ({"row": "fedee", "evaluation": {"auc_input": "belief"}}, "evaluation.auc_input: Input should be 'answer'"),
        ({"row": "fedavg", "exchange": {"personal": "exits"}, "grades": 5}, "has none"),
        ({"row": "fedee", "exchange": {"personal": "exits"}}, "grades or classes"),
        ({"row": "fedee", "exchange": {"personal": "nothing", "encrypt": "head"}, "grades": 5}, "in the clear"),
    ],
)
def test_what_does_not_go_together_is_refused(words, said):
    with pytest.raises(SettingsError, match=said):
        Experiment.resolve(words)


def test_uncertainty_of_exits_lies_in_the_range_that_theta_asks_for(tiny, phantoms, tmp_path):
    experiment = tiny(**EXITS, phases=[{"name": "train", "rounds": 1}])
    run_loop(experiment, phantoms(experiment, "site-2"), tmp_path, "a")
    card = storage.read_json(tmp_path / "a" / "site-2" / "final" / "card.json")
    assert card["estimator"] == "softmax_mean"
    assert np.isfinite(card["theta"]["value"])
