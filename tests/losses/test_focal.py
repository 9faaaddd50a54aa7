"""The focal loss against its formula, and where it must not break."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedretina.errors import TrainingError
from fedretina.losses.cross_entropy import FocalObjective, cross_entropy, focal_loss
from fedretina.losses.objective import Clock
from fedretina.settings.objective import FocalSettings

CLOCK = Clock(0, 1, 0, 1, 0, 1)


def drawn(seed=1, classes=5):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(0, 3, (11, classes))).float(), torch.from_numpy(rng.integers(0, classes, 11))


@pytest.mark.parametrize("gamma", [0.5, 1, 2, 5])
def test_against_the_formula(gamma):
    logits, labels = drawn()
    alpha = [0.5, 2, 1, 7, 3]
    for found, one, label in zip(
        focal_loss(logits, labels, gamma, torch.tensor(alpha)),
        logits.numpy().astype(float),
        labels.tolist(),
        strict=True,
    ):
        share = np.exp(one) / np.exp(one).sum()
        assert found.item() == pytest.approx(
            -alpha[label] * (1 - share[label]) ** gamma * np.log(share[label]), rel=1e-4, abs=1e-7
        )


def test_gamma_0_without_weights_is_cross_entropy():
    logits, labels = drawn()
    assert torch.equal(focal_loss(logits, labels, 0), cross_entropy(logits, labels))


@pytest.mark.parametrize("gamma", [0, 0.5, 2])
def test_sure_answers_right_and_wrong_have_finite_gradients(gamma):
    logits = torch.tensor([[90.0, -90.0], [-90.0, 90.0], [0.0, 0.0]], requires_grad=True)
    loss = focal_loss(logits, torch.tensor([0, 0, 1]), gamma)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logits.grad.isfinite().all()
    assert loss[0].item() == 0
    assert loss[1].item() == pytest.approx(180)


def test_half_precision_is_widened_and_labels_outside_are_errors():
    logits, labels = drawn()
    value = focal_loss(logits.bfloat16(), labels, 2)
    assert value.dtype == torch.float32
    with pytest.raises((RuntimeError, IndexError)):
        focal_loss(logits, torch.full((11,), -100), 2)


def test_the_objective_is_the_mean_and_needs_a_weight_a_grade():
    logits, labels = drawn(classes=3)
    settings = FocalSettings(gamma=1, alpha=(1, 2, 3))
    score = FocalObjective(settings).score(logits, labels, CLOCK)
    torch.testing.assert_close(score, focal_loss(logits, labels, 1, torch.tensor([1.0, 2.0, 3.0])).mean())
    assert not FocalObjective.evidential
    with pytest.raises(TrainingError, match="3 weights, but there are 5 grades"):
        FocalObjective(settings).score(*drawn(classes=5), CLOCK)


@pytest.mark.parametrize("words", [{"gamma": -1}, {"alpha": (1,)}, {"alpha": (1, 0)}, {"alpha": (1, float("inf"))}])
def test_settings_that_cannot_be(words):
    with pytest.raises(ValidationError):
        FocalSettings(**words)
