"""Conformal sets: the quantile by hand, coverage over many draws, and calibrations that are too small."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedretina.errors import SettingsError, TrainingError
from fedretina_papers.statistics.conformal import conformal_quantile, judge_sets, prediction_sets


def made(rng, n, classes=4):
    labels = rng.integers(0, classes, n)
    odds = np.exp(1.2 * np.eye(classes)[labels] + rng.normal(size=(n, classes)))
    return odds / odds.sum(1, keepdims=True), labels


def test_the_quantile_is_the_kth_smallest_score():
    # Scores 1 - p of the truth: 0.1, 0.2, ..., 0.9.
    own = np.arange(1, 10) / 10
    probabilities = np.column_stack([1 - own, own])
    labels = np.zeros(9, dtype=int)
    for alpha, k in ((0.1, 9), (0.2, 8), (0.25, 8), (0.5, 5), (0.9, 1)):
        assert conformal_quantile(probabilities, labels, alpha) == pytest.approx(own[k - 1])
        assert k == math.ceil(10 * (1 - alpha) - 1e-9)
    assert conformal_quantile(probabilities, labels, 0.09) == math.inf


def test_a_calibration_that_is_too_small_gives_whole_sets():
    rng = np.random.default_rng(1)
    for n in (0, 1, 8):
        probabilities, labels = made(rng, n) if n else (np.empty((0, 4)), np.empty(0, dtype=int))
        quantile = conformal_quantile(probabilities, labels, 0.1)
        assert quantile == math.inf
        assert prediction_sets(made(rng, 5)[0], quantile).all()


def test_coverage_over_many_draws_is_what_was_asked():
    rng = np.random.default_rng(2)
    alpha, n, covered = 0.2, 24, []
    for _ in range(1500):
        quantile = conformal_quantile(*made(rng, n), alpha)
        probabilities, labels = made(rng, 20)
        covered.append(np.mean(prediction_sets(probabilities, quantile)[np.arange(20), labels]))
    mean, error = np.mean(covered), np.std(covered) / math.sqrt(len(covered))
    assert 1 - alpha - 3 * error <= mean <= 1 - alpha + 1 / (n + 1) + 3 * error


def test_a_grade_is_in_up_to_the_quantile_and_a_set_may_be_empty():
    row = np.array([[0.5, 0.3, 0.15, 0.05]])
    for quantile, grades in ((0.4, 0), (0.5, 1), (0.7, 2), (0.849, 2), (0.851, 3)):
        assert prediction_sets(row, quantile)[0].tolist() == [at < grades for at in range(4)]


def test_sets_are_judged_by_image():
    sets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]])
    found = judge_sets(sets, [0, 2, 1, 2])
    assert found.coverage[:3] == (2, 4, 0.5)
    assert found.coverage.low == pytest.approx(0.0676, abs=1e-4)
    assert found.mean_size == 1.5


def test_unfit_input():
    probabilities, labels = made(np.random.default_rng(0), 30)
    for alpha in (0, 1, -0.1, math.nan):
        with pytest.raises(SettingsError, match="error rate"):
            conformal_quantile(probabilities, labels, alpha)
    with pytest.raises(TrainingError, match="not a class"):
        conformal_quantile(probabilities, labels + 4)
    with pytest.raises(TrainingError, match="not finite"):
        prediction_sets([[math.nan, 1.0]], 0.5)
    with pytest.raises(TrainingError, match="without images"):
        judge_sets(np.empty((0, 3)), np.empty(0, dtype=int))
