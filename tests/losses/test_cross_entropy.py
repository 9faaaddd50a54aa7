"""Cross entropy against torch's own, and what it does with labels that torch would skip."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedretina.losses.cross_entropy import CrossEntropyObjective, cross_entropy
from fedretina.losses.objective import Clock

CLOCK = Clock(0, 1, 0, 1, 0, 1)


def test_it_equals_torch_and_the_objective_is_its_mean():
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(0, 4, (9, 6))).float()
    labels = torch.from_numpy(rng.integers(0, 6, 9))
    torch.testing.assert_close(cross_entropy(logits, labels), F.cross_entropy(logits, labels, reduction="none"))
    score = CrossEntropyObjective().score(logits, labels, CLOCK)
    torch.testing.assert_close(score, F.cross_entropy(logits, labels))


def test_a_uniform_answer_costs_log_k():
    assert cross_entropy(torch.zeros(1, 5), torch.tensor([2])).item() == pytest.approx(np.log(5))


def test_half_precision_is_widened_first():
    logits = torch.tensor([[1.0, -2.0, 0.3]]).bfloat16()
    value = cross_entropy(logits, torch.tensor([1]))
    assert value.dtype == torch.float32
    assert torch.equal(value, cross_entropy(logits.float(), torch.tensor([1])))


def test_minus_100_is_an_error_and_not_skipped():
    with pytest.raises((RuntimeError, IndexError)):
        cross_entropy(torch.zeros(2, 5), torch.tensor([1, -100]))


def test_gradient_is_finite_at_large_logits():
    logits = torch.tensor([[50.0, -50.0], [-50.0, 50.0]], requires_grad=True)
    cross_entropy(logits, torch.tensor([1, 1])).sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0].tolist() == pytest.approx([1.0, -1.0])
