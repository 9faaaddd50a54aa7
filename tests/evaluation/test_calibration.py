"""Calibration metrics against loops, scikit-learn and closed cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from fedretina.errors import SettingsError, TrainingError
from fedretina.evaluation.metrics import brier, ece, nll


@pytest.fixture
def split() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(9)
    return rng.dirichlet(np.full(5, 0.4), 200), rng.integers(0, 5, 200)


def slow_ece(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
    total = 0.0
    edges = np.linspace(0, 1, bins + 1)
    for low, high in itertools.pairwise(edges):
        inside = [n for n, row in enumerate(probabilities) if low < row.max() <= high]
        if inside:
            confidence = np.mean([probabilities[n].max() for n in inside])
            right = np.mean([probabilities[n].argmax() == labels[n] for n in inside])
            total += len(inside) / len(labels) * abs(confidence - right)
    return total


@pytest.mark.parametrize("bins", [1, 2, 10, 15])
def test_ece_against_a_loop_over_bins(split, bins):
    assert ece(*split, bins=bins) == pytest.approx(slow_ece(*split, bins), abs=1e-12)


def test_ece_uses_fifteen_bins_by_default(split):
    assert ece(*split) == ece(*split, bins=15) != ece(*split, bins=10)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    # Bins (0, .5] and (.5, 1]: .5 is wrong, .75 is right. One bin for both would give |1.25 - 1| / 2.
    probabilities, labels = np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([1, 1])
    assert ece(probabilities, labels, bins=2) == pytest.approx((0.5 + 0.25) / 2)
    # Of four bins .5 (right) and .4 (wrong) share (.25, .5]; in [.5, .75) the value .5 would stand alone: .45.
    assert ece(np.array([[0.5, 0.3, 0.2], [0.4, 0.3, 0.3]]), np.array([0, 1]), bins=4) == pytest.approx(0.05)


def test_ece_ends():
    assert ece(np.eye(3), np.arange(3)) == 0.0
    assert ece(np.eye(3), np.array([1, 2, 0])) == 1.0


def test_ece_refuses_no_bins(split):
    with pytest.raises(SettingsError, match="1 or more"):
        ece(*split, bins=0)


def test_brier_against_a_loop_and_scikit_learn(split):
    probabilities, labels = split
    slow = np.mean([sum((p - (k == y)) ** 2 for k, p in enumerate(row)) for row, y in zip(*split, strict=True)])
    assert brier(probabilities, labels) == pytest.approx(slow)
    two = np.column_stack([1 - probabilities[:, 0], probabilities[:, 0]])
    assert brier(two, (labels == 0).astype(int)) == pytest.approx(2 * brier_score_loss(labels == 0, two[:, 1]))
    assert brier(np.eye(3), np.arange(3)) == 0.0
    assert brier(np.eye(3), np.array([1, 2, 0])) == 2.0


def test_brier_takes_a_row_that_float32_rounded_above_one():
    assert brier(np.array([[1 + 1e-7, 0]]), np.array([0])) == pytest.approx(0, abs=1e-12)


def test_nll_equals_scikit_learn(split):
    assert nll(*split) == pytest.approx(log_loss(split[1], split[0], labels=range(5)))
    assert nll(np.full((4, 5), 0.2), np.arange(4)) == pytest.approx(math.log(5))


def test_nll_of_a_certain_mistake_is_large_and_finite():
    assert nll(np.eye(2), np.array([1, 0])) == pytest.approx(708.4, abs=0.01)
    assert nll(np.eye(2), np.array([0, 1])) == 0.0


@pytest.mark.parametrize("metric", [ece, brier, nll])
def test_unfit_input_is_refused(metric):
    with pytest.raises(TrainingError, match="not finite"):
        metric(np.full((1, 2), math.nan), np.array([0]))
    with pytest.raises(TrainingError, match="not a class"):
        metric(np.full((1, 2), 0.5), np.array([2]))
