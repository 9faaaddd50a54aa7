"""The opinion read from logits: the specification's numbers and its invariants."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedretina.errors import TrainingError
from fedretina.uncertainty.evidence import as_if_graded, opinion


def test_zero_logits_of_five_classes_give_the_numbers_of_the_specification():
    view = opinion(torch.zeros(1, 5))
    assert view.evidence[0].tolist() == pytest.approx([math.log(2)] * 5)
    assert view.alpha[0].tolist() == pytest.approx([1 + math.log(2)] * 5)
    assert view.strength.item() == pytest.approx(8.4657, abs=1e-4)
    assert view.uncertainty.item() == pytest.approx(0.5906, abs=1e-4)
    assert view.belief[0].tolist() == pytest.approx([0.0819] * 5, abs=1e-4)
    assert view.probability[0].tolist() == pytest.approx([0.2] * 5)


@pytest.mark.parametrize("classes", [2, 4, 5, 6])
def test_invariants_on_random_logits(classes):
    logits = torch.from_numpy(np.random.default_rng(classes).normal(0, 5, (50, classes)))
    view = opinion(logits)
    torch.testing.assert_close(view.belief.sum(1) + view.uncertainty, torch.ones(50).double())
    torch.testing.assert_close(view.probability, view.belief + view.uncertainty[:, None] / classes)
    torch.testing.assert_close(view.probability.sum(1), torch.ones(50).double())
    assert ((view.uncertainty > 0) & (view.uncertainty <= 1)).all()
    assert (view.evidence > 0).all()
    assert torch.equal(view.belief.argmax(1), logits.argmax(1))


def test_uncertainty_is_one_without_evidence_and_falls_with_it():
    sizes = torch.tensor([-200.0, -1.0, 0.0, 3.0, 50.0, 1e6])
    u = opinion(sizes[:, None].expand(6, 5)).uncertainty
    assert u[0].item() == 1.0
    assert (u.diff() < 0).all()
    assert u[-1].item() > 0


@pytest.mark.parametrize("classes", [3, 5, 6, 7])
def test_rounding_never_lifts_uncertainty_above_one(classes):
    logits = torch.linspace(-30, -10, 400)[:, None].expand(400, classes)
    assert (opinion(logits).uncertainty <= 1).all()


def test_half_precision_is_widened_and_double_is_kept():
    logits = torch.tensor([[0.3, -2.0, 7.0]])
    assert opinion(logits.bfloat16()).uncertainty.dtype == torch.float32
    assert opinion(logits).uncertainty.dtype == torch.float32
    assert opinion(logits.double()).uncertainty.dtype == torch.float64


def test_gradients_are_finite_at_large_logits():
    logits = torch.tensor([[50.0, -50.0], [-50.0, -50.0]], requires_grad=True)
    view = opinion(logits)
    (view.belief.sum() + view.probability[:, 0].sum()).backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(5,), (3, 1), (2, 5, 4)])
def test_wrong_shapes_are_refused(shape):
    with pytest.raises(TrainingError, match="shape"):
        opinion(torch.zeros(shape))


def test_equal_evidence_gives_equal_uncertainty_at_any_number_of_grades():
    evidence = np.array([0.0, 0.5, 3.0, 40.0])
    five = 5 / (5 + evidence)
    for grades in (2, 4, 6, 20):
        np.testing.assert_allclose(as_if_graded(grades / (grades + evidence), grades, 5), five)
    u = np.linspace(0.01, 1, 50)
    assert np.array_equal(as_if_graded(u, 6, 6), u)
    assert np.all(np.diff(as_if_graded(u, 6, 5)) > 0)
    assert as_if_graded(np.ones(1), 6, 5) == 1
