"""Heads that begin as probes: what they answer before anything is trained, and what cannot begin so."""

from __future__ import annotations

import pytest
import torch

from fedretina.analytic.layer import ridge_layer
from fedretina.errors import SettingsError
from fedretina.local.features import FrozenEncoder
from fedretina.local.trainer import LocalTrainer
from fedretina.losses.objective import Clock, build_objective
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan

WORDS = {
    "augment": {"rotate_degrees": 0},
    "network": {"head": {"layout": "linear", "start": "ridge"}},
    "phantom_images": 60,
}


def began(experiment, data):
    trainer = LocalTrainer(experiment, data)
    state = trainer.model.net.state_dict()
    shared = {key: state[key].clone() for key in trainer.partition.shared}
    return trainer, shared, trainer.initial(shared, Plan.of(experiment)[0])


@pytest.mark.parametrize(
    "words", [{"row": "feduaa"}, {"row": "fedbn"}, {"row": "fedavg"}, {"row": "moon_projected"}, {"row": "fedee_tweu"}]
)
@pytest.mark.parametrize("frozen", ["nothing", 3])
def test_a_head_begins_as_the_probe_of_what_enters_it(words, frozen, tiny, phantoms):
    network = {**WORDS["network"], "frozen": frozen}
    experiment = tiny(**{**WORDS, **words, "network": network})
    data = phantoms(experiment, "site-1")["site-1"]
    trainer, shared, start = began(experiment, data)
    train, val = data.split("train"), data.split("val")
    trainer.model.load(shared, trainer.model.start)
    net = trainer.model.net.eval()
    with torch.inference_mode():
        entered, asked = (net.features(split.images.float() / 255) for split in (train, val))
    layer = ridge_layer(entered, train.labels, data.scheme.num_classes)
    found = trainer.answers(shared, start.tensors, val).logits
    answered = found[:, -1] if found.ndim == 3 else found
    scores = asked.double() @ layer.weight.T + layer.bias
    assert torch.equal(answered.argmax(1), scores.argmax(1))
    # All logits are one scale and one shift of the scores.
    scale = (answered[:, 0] - answered[:, 1]).double() / (scores[:, 0] - scores[:, 1])
    torch.testing.assert_close(scale, scale[:1].expand(len(scale)), rtol=0.02, atol=0)
    others = set(start.tensors) - {key for key in start.tensors if key.startswith(("head.0.", "exits."))}
    assert all(torch.equal(start.tensors[key], trainer.model.start[key]) for key in others)


def test_the_probe_of_a_frozen_encoder_is_that_of_its_kept_features(tiny, phantoms):
    network = {**WORDS["network"], "frozen": "all"}
    experiment = tiny(**{**WORDS, "row": "singleset", "network": network})
    data = phantoms(experiment, "site-1")["site-1"]
    _, _, start = began(experiment, data)
    train = data.split("train")
    layer = ridge_layer(FrozenEncoder(experiment, data).features(train), train.labels, data.scheme.num_classes)
    scale = start.tensors["head.0.weight"].double().norm() / layer.weight.norm()
    torch.testing.assert_close(start.tensors["head.0.weight"], (scale * layer.weight).float(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("row", ["feduaa", "fedee_tweu"])
def test_the_objective_begins_below_where_the_seed_would(row, tiny, phantoms):
    """On validation images, exits and all; and no other scale would do much better on the images left out."""
    experiment = tiny(**{**WORDS, "row": row})
    data = phantoms(experiment, "site-1")["site-1"]
    trainer, shared, start = began(experiment, data)
    objective, clock = build_objective(experiment.objective), Clock(0, 2, 0, 1, 0, 1)
    split = data.split("val")

    def loss(personal):
        logits = trainer.answers(shared, personal, split).logits
        each = logits.unbind(1) if logits.ndim == 3 else [logits]
        return sum(float(objective.score(one, split.labels, clock)) for one in each)

    assert loss(start.tensors) < loss(trainer.initial().tensors)


def test_fitted_twice_it_has_the_same_bits(tiny, phantoms):
    experiment = tiny(**{**WORDS, "row": "fedee_tweu"})
    data = phantoms(experiment, "site-1")["site-1"]
    first, second = (began(experiment, data)[2].tensors for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"exchange": {"personal": "nothing"}, "grades": 5}, "a head that sites share begins alike at all of them"),
        ({"network": {"head": {"start": "ridge"}}}, "network.head.start: layout 'linear_bn_relu_linear' does not read"),
        ({"row": "oct_moco_feduaa", "exchange": {"personal": "head"}}, "a phase without labels comes first"),
    ],
)
def test_a_head_that_cannot_begin_so_is_refused(words, told):
    words = {"row": "fedavg", "network": {"head": {"layout": "linear", "start": "ridge"}}, **words}
    if words["row"] != "fedavg":
        words["classes"] = None
    with pytest.raises(SettingsError, match=told):
        Experiment.resolve(words)
