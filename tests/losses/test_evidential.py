"""The evidential loss against closed forms, torch's Dirichlet, an integral and sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch.distributions import Dirichlet, kl_divergence

from fedretina.losses.evidential import EvidentialObjective, evidential_loss, ice_loss, kl_loss
from fedretina.losses.objective import Clock
from fedretina.settings.objective import EvidentialSettings
from fedretina.uncertainty.evidence import opinion


def random_case(seed: int, classes: int, count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    alpha = torch.from_numpy(1 + rng.exponential(3.0, (count, classes)))
    return alpha, torch.from_numpy(rng.integers(0, classes, count))


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 6])
def test_ice_without_evidence_is_a_harmonic_number(classes):
    value = ice_loss(torch.ones(classes, classes), torch.arange(classes))
    expected = sum(1 / j for j in range(1, classes))
    assert value.numpy() == pytest.approx(np.full(classes, expected), rel=1e-6)


def test_ice_for_five_classes_is_the_number_of_the_specification():
    assert ice_loss(torch.ones(1, 5), torch.tensor([3])).item() == pytest.approx(2.0833, abs=1e-4)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (2.5, 1.3), (1.1, 6.0)])
def test_ice_is_the_integral_of_the_cross_entropy_over_a_beta(a, b):
    integral, _ = integrate.quad(lambda p: -np.log(p) * stats.beta.pdf(p, a, b), 0, 1)
    assert ice_loss(torch.tensor([[a, b]]).double(), torch.tensor([0])).item() == pytest.approx(integral, rel=1e-6)


def test_ice_is_the_mean_over_samples_of_a_dirichlet():
    alpha = np.array([2.0, 1.0, 4.5])
    draws = -np.log(np.random.default_rng(5).dirichlet(alpha, 200_000))
    spread = draws.std(0) / np.sqrt(len(draws))
    value = ice_loss(torch.from_numpy(alpha).expand(3, 3), torch.arange(3)).numpy()
    assert (np.abs(value - draws.mean(0)) < 5 * spread).all()


@pytest.mark.parametrize("classes", [2, 4, 5, 6])
def test_kl_is_the_divergence_from_the_uniform_dirichlet(classes):
    alpha, labels = random_case(classes, classes)
    tilde = alpha.clone()
    tilde[torch.arange(len(labels)), labels] = 1.0
    expected = kl_divergence(Dirichlet(tilde), Dirichlet(torch.ones_like(tilde)))
    torch.testing.assert_close(kl_loss(alpha, labels), expected)
    assert (kl_loss(alpha, labels) > 0).all()


def test_kl_closed_case_of_two_classes():
    # KL(Beta(1, a) || Beta(1, 1)) = log a - (a - 1) / a
    value = kl_loss(torch.tensor([[7.0, 4.0]]).double(), torch.tensor([0])).item()
    assert value == pytest.approx(np.log(4) - 3 / 4, rel=1e-12)


def test_kl_is_exactly_zero_iff_no_wrong_class_has_evidence():
    alpha = torch.ones(1, 5)
    alpha[0, 2] = 9.0
    assert kl_loss(alpha, torch.tensor([2])).item() == 0.0
    assert kl_loss(alpha, torch.tensor([1])).item() > 0.5


def test_kl_gives_no_gradient_to_the_true_class():
    alpha, labels = random_case(3, 5)
    alpha.requires_grad_()
    kl_loss(alpha, labels).sum().backward()
    own = alpha.grad.gather(1, labels[:, None])
    assert (own == 0).all()
    assert ((alpha.grad != 0).sum(1) == 4).all()


def test_kl_pushes_the_evidence_of_a_lone_wrong_class_down():
    alpha = torch.tensor([[3.0, 1.0, 6.0]]).double().requires_grad_()
    kl_loss(alpha, torch.tensor([0])).sum().backward()
    assert alpha.grad[0, 0] == 0
    assert alpha.grad[0, 2] > 0


@pytest.mark.parametrize("part", [ice_loss, kl_loss])
def test_gradients_agree_with_finite_differences(part):
    alpha, labels = random_case(11, 4, count=3)
    assert torch.autograd.gradcheck(lambda a: part(a, labels), (alpha.requires_grad_(),))


@pytest.mark.parametrize("size", [-50.0, 50.0])
def test_gradients_are_finite_at_large_logits(size):
    logits = torch.full((5, 5), -size).fill_diagonal_(size).requires_grad_()
    for labels in (torch.arange(5), torch.arange(5).roll(1)):
        loss = evidential_loss(opinion(logits).alpha, labels, 1.0)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("part", [ice_loss, kl_loss])
def test_half_precision_is_widened_first(part):
    alpha, labels = random_case(2, 5)
    half = alpha.bfloat16()
    assert part(half, labels).dtype == torch.float32
    assert torch.equal(part(half, labels), part(half.float(), labels))


@pytest.mark.parametrize("part", [ice_loss, kl_loss])
@pytest.mark.parametrize("label", [-100, -1, 5])
def test_a_label_outside_the_classes_is_an_error(part, label):
    with pytest.raises((RuntimeError, IndexError)):
        part(torch.ones(1, 5), torch.tensor([label]))


def test_objective_is_the_mean_and_follows_lambda():
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 3, (6, 5))).float()
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    alpha = opinion(logits).alpha
    for round_, weight in ((0, 0.0), (1, 0.5), (2, 1.0)):
        loss = EvidentialObjective().score(logits, labels, Clock(round_, 3, 0, 1, 0, 1))
        torch.testing.assert_close(loss, (ice_loss(alpha, labels) + weight * kl_loss(alpha, labels)).mean())
    official = EvidentialObjective(EvidentialSettings(kl_anneal="official")).score(
        logits, labels, Clock(0, 3, 0, 1, 0, 1)
    )
    torch.testing.assert_close(official, (ice_loss(alpha, labels) + 0.25 * kl_loss(alpha, labels)).mean())


def test_objective_is_float32_under_autocast():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(torch.linspace(0, 1, 24).reshape(2, 3, 2, 2))
        loss = EvidentialObjective().score(logits, torch.tensor([0, 4]), Clock(0, 1, 0, 1, 0, 1))
    assert (loss.dtype, logits.dtype) == (torch.float32, torch.bfloat16)
    loss.backward()
    assert net[1].weight.grad.isfinite().all()
