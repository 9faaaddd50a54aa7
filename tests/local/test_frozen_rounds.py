"""Rounds with frozen stages: the same bits with and without what is kept, under every kind of row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedretina.exchange.payload import tensors_digest
from fedretina.local.features import FrozenOutputs
from fedretina.local.site import Site
from fedretina.local.trainer import LocalTrainer
from fedretina.loop import run_loop
from fedretina.prediction.predictor import Predictor
from fedretina.settings.plan import Plan
from fedretina.storage import read_json, read_tensors

ROWS = {
    "feduaa": {},
    "fedbn, quarter turns": {"row": "fedbn", "augment": {"quarter_turns": True}},
    "fedavg, all": {
        "row": "fedavg",
        "grades": 5,
        "exchange": {"personal": "nothing"},
        "network": {"frozen": "all"},
    },
    "exits": {"row": "fedee_tweu"},
    "exits, all": {"row": "fedee", "grades": 5, "exchange": {"personal": "exits"}, "network": {"frozen": "all"}},
    "scaffold": {"row": "scaffold"},
    "moon": {"row": "moon_projected"},
    "feddyn, adam": {"row": "feddyn", "training": {"optimizer": "adam", "optimizer_state": "keep", "momentum": 0}},
    "models by site": {"row": "fedap"},
    "tuned": {"row": "fedavg_ft", "tune": {"epochs": 1}},
    "temperatures": {"row": "mdt"},
    "dropout": {"row": "mc_dropout", "network": {"dropout": {"after": [2, 3]}}},
    "stretches": {"row": "fedrep", "training": {"stretches": [{"train": "head"}, {"train": "encoder"}]}},
}


def frozen(tiny, words, **cache):
    network = {"frozen": 3, **words.get("network", {}), **cache}
    augment = {"rotate_degrees": 0, **words.get("augment", {})}
    return tiny(**{**words, "network": network, "augment": augment})


EVERYDAY = ("feduaa", "exits, all")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in EVERYDAY else pytest.mark.slow) for name in ROWS]
)
def test_what_is_kept_changes_no_bit_of_a_run(name, tiny, phantoms, tmp_path):
    """The federation runs with the cache, each site's cache in a folder of its own, and again without any."""
    kept, anew = frozen(tiny, ROWS[name]), frozen(tiny, ROWS[name], frozen_cache="off")
    names = ("site-1", "site-4") if kept.grades == 5 else ("site-1", "site-2")
    data = phantoms(kept, *names)
    here = {name: replace(one, features=one.features._replace(folder=tmp_path / name)) for name, one in data.items()}
    runs = ((kept, here), (anew, data))
    first, second = (run_loop(run, sites, tmp_path, run.network.frozen_cache) for run, sites in runs)
    assert [step.get("digest") for step in first["steps"]] == [step.get("digest") for step in second["steps"]]
    assert first["sites"] == second["sites"]
    assert all(list((tmp_path / name).glob("*/rows-*")) for name in names)
    net = LocalTrainer(kept, data[names[0]]).model.net
    start = {key: value.clone() for key, value in net.state_dict().items()}
    for site in names:
        model, _ = read_tensors(tmp_path / "strict" / site / "final" / "model.safetensors")
        assert all(torch.equal(model[key], start[key]) for key in net.frozen_keys())
        report = read_json(tmp_path / "strict" / site / "final" / "report.json")
        assert any(kind.endswith(", frozen") for kind in report["provenance"]["partition"])
        rounds = [read_tensors(path)[0] for path in (tmp_path / "strict" / site).glob("*.safetensors")]
        assert rounds
        assert not any(set(net.frozen_keys()) & set(tensors) for tensors in rounds)


def test_the_model_answers_photographs_as_it_was_tested(tiny, phantoms, tmp_path):
    run = frozen(tiny, {})
    data = phantoms(run, "site-1", "site-2")
    run_loop(run, data, tmp_path, "r")
    predictor = Predictor.load(tmp_path / "r" / "site-1")
    assert predictor.net.frozen == 3
    images, host = data["site-1"].split("test").images, Site(run, data["site-1"], tmp_path / "other")
    model = read_tensors(tmp_path / "r" / "site-1" / "final" / "model.safetensors")[0]
    tested = host.trainer.answers({}, model, data["site-1"].split("test")).logits
    said = predictor.logits(images)
    with torch.inference_mode():
        assert torch.equal(predictor.net(images.float() / 255), tested)
        torch.testing.assert_close(said, tested, rtol=1e-2, atol=1e-2)
        # It rounds nothing: another program's last digits make no step in an answer.
        predictor.net.frozen = 0
        torch.testing.assert_close(said, predictor.net(images.float() / 255), rtol=1e-5, atol=1e-6)


def test_random_transforms_without_end_are_applied_without_a_cache(tiny, phantoms, tmp_path, monkeypatch):
    words = {"network": {"frozen": 3, "frozen_cache": "lenient"}, "augment": {"rotate_degrees": 10}}
    run = tiny(**words)
    data = phantoms(run, "site-1")["site-1"]
    trainer = LocalTrainer(run, data)
    shared = {key: value for key, value in trainer.model.net.state_dict().items() if key in trainer.partition.shared}
    asked = []
    plain = FrozenOutputs.of
    monkeypatch.setattr(FrozenOutputs, "of", lambda self, split, *more: asked.append(more) or plain(self, split, *more))
    step = Plan.of(run)[0]
    update = trainer.train(shared, trainer.initial(), step)
    assert asked == []  # the batches of training were computed from their own pixels
    still = tiny(network={"frozen": 3}, augment={"rotate_degrees": 0})
    other = LocalTrainer(still, data).train(shared, trainer.initial(), step)
    assert tensors_digest(update.tensors) != tensors_digest(other.tensors)
