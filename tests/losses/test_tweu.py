"""The TWEU objective: its three terms, its settings and its gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedretina.losses.evidential import EvidentialObjective, TweuObjective, ice_loss, kl_loss, warmed_cross_entropy
from fedretina.losses.objective import Clock
from fedretina.settings.objective import TweuSettings
from fedretina.uncertainty.evidence import opinion

MIDDLE = Clock(1, 3, 0, 1, 0, 1)  # lambda = 1/2


class Answered(NamedTuple):
    logits: torch.Tensor
    labels: torch.Tensor


@pytest.fixture
def batch() -> Answered:
    rng = np.random.default_rng(7)
    return Answered(torch.from_numpy(rng.normal(0, 4, (8, 5))).float(), torch.from_numpy(rng.integers(0, 5, 8)))


def test_warmed_cross_entropy_against_a_loop():
    belief = [[0.1, 0.5, 0.2], [0.0, 0.0, 0.9]]
    labels = [1, 0]
    expected = []
    for row, label in zip(belief, labels, strict=True):
        powers = [math.exp(b / 0.05) for b in row]
        expected.append(-math.log(powers[label] / sum(powers)))
    value = warmed_cross_entropy(torch.tensor(belief).double(), torch.tensor(labels), 0.05)
    assert value.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("tau", [0.01, 0.05, 1.0])
def test_warmed_cross_entropy_stays_within_its_stated_range(tau):
    belief = torch.eye(5).double()
    worst = warmed_cross_entropy(belief, torch.arange(5).roll(1), tau)
    assert worst.tolist() == pytest.approx([math.log(4 + math.exp(1 / tau))] * 5)
    assert (warmed_cross_entropy(belief, torch.arange(5), tau) >= 0).all()


def test_loss_is_ice_plus_lambda_kl_plus_warmed(batch):
    view = opinion(batch.logits)
    parts = (
        ice_loss(view.alpha, batch.labels)
        + 0.5 * kl_loss(view.alpha, batch.labels)
        + warmed_cross_entropy(view.belief, batch.labels, 0.05)
    )
    loss = TweuObjective(TweuSettings()).score(*batch, MIDDLE)
    torch.testing.assert_close(loss, parts.mean())


def test_warmed_weight_zero_is_the_evidential_objective(batch):
    plain = EvidentialObjective().score(*batch, MIDDLE)
    loss = TweuObjective(TweuSettings(warmed_weight=0)).score(*batch, MIDDLE)
    assert torch.equal(loss, plain)


def test_warmed_weight_scales_its_term_alone(batch):
    at = [TweuObjective(TweuSettings(warmed_weight=w)).score(*batch, MIDDLE).item() for w in (0, 1, 3)]
    assert at[2] - at[0] == pytest.approx(3 * (at[1] - at[0]), rel=1e-5)


def test_schedule_is_passed_on(batch):
    clock = Clock(0, 1, 0, 1, 0, 1)
    gap = [
        TweuObjective(TweuSettings(kl_anneal=name)).score(*batch, clock).item()
        for name in ("linear_rounds", "official")
    ]
    kl = kl_loss(opinion(batch.logits).alpha, batch.labels).mean().item()
    assert gap[0] - gap[1] == pytest.approx(kl / 2, rel=1e-4)


@pytest.mark.parametrize("size", [-50.0, 50.0])
def test_gradients_are_finite_at_large_logits(size):
    logits = torch.full((5, 5), -size).fill_diagonal_(size).requires_grad_()
    for labels in (torch.arange(5), torch.arange(5).roll(1)):
        loss = TweuObjective(TweuSettings()).score(logits, labels, MIDDLE)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite()
        assert gradient.isfinite().all()


def test_gradient_steps_lower_the_loss_and_teach_the_labels(batch):
    logits = batch.logits.clone().requires_grad_()
    losses = []
    for _ in range(200):
        loss = TweuObjective(TweuSettings()).score(logits, batch.labels, MIDDLE)
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - gradient).detach().requires_grad_()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert torch.equal(logits.argmax(1), batch.labels)


def test_defaults_are_the_papers():
    settings = TweuSettings()
    assert (settings.tau, settings.kl_anneal, settings.warmed_weight) == (0.05, "linear_rounds", 1.0)


@pytest.mark.parametrize("tau", [0, -1, math.inf, math.nan])
def test_tau_outside_its_range_is_refused_in_a_sentence(tau):
    with pytest.raises(ValidationError, match="must be a finite number above 0"):
        TweuSettings(tau=tau)


@pytest.mark.parametrize("weight", [-0.1, math.inf, math.nan])
def test_warmed_weight_outside_its_range_is_refused_in_a_sentence(weight):
    with pytest.raises(ValidationError, match="finite number, 0 or above"):
        TweuSettings(warmed_weight=weight)


def test_settings_are_frozen_and_refuse_unknown_names():
    with pytest.raises(ValidationError):
        TweuSettings().tau = 0.1
    with pytest.raises(ValidationError):
        TweuSettings(temperature=0.1)
    with pytest.raises(ValidationError):
        TweuSettings(kl_anneal="cosine")
