"""Conformal sets: the quantile by hand, coverage over many draws, ties, and calibrations that are too small."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedretina.errors import SettingsError, TrainingError
from fedretina_papers.statistics.conformal import (
    ConformalRule,
    conformal_rule,
    judge_sets,
    prediction_sets,
)


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
        rule = conformal_rule(probabilities, labels, alpha)
        assert rule.quantile == pytest.approx(own[k - 1])
        assert k == math.ceil(10 * (1 - alpha) - 1e-9)
    assert conformal_rule(probabilities, labels, 0.09).quantile == math.inf


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_a_calibration_that_is_too_small_gives_whole_sets(score):
    rng = np.random.default_rng(1)
    for n in (0, 1, 8):
        probabilities, labels = made(rng, n) if n else (np.empty((0, 4)), np.empty(0, dtype=int))
        rule = conformal_rule(probabilities, labels, 0.1, score)
        assert (rule.quantile, rule.images) == (math.inf, n)
        assert prediction_sets(made(rng, 5)[0], rule).all()


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_coverage_over_many_draws_is_what_was_asked(score):
    rng = np.random.default_rng(2)
    alpha, n, covered = 0.2, 24, []
    for _ in range(1500):
        rule = conformal_rule(*made(rng, n), alpha, score)
        probabilities, labels = made(rng, 20)
        covered.append(np.mean(prediction_sets(probabilities, rule)[np.arange(20), labels]))
    mean, error = np.mean(covered), np.std(covered) / math.sqrt(len(covered))
    assert mean >= 1 - alpha - 3 * error
    if score == "lac":  # the likeliest grade, which is always in, lifts the other
        assert mean <= 1 - alpha + 1 / (n + 1) + 3 * error


def test_the_scores_by_hand():
    row = np.array([[0.5, 0.3, 0.15, 0.05]])
    for quantile, lac, aps in ((0.5, [1, 0, 0, 0], [1, 0, 0, 0]), (0.8, [1, 1, 0, 0], [1, 1, 0, 0])):
        assert prediction_sets(row, ConformalRule("lac", quantile, 0.1, 9)).astype(int)[0].tolist() == lac
        assert prediction_sets(row, ConformalRule("aps", quantile, 0.1, 9)).astype(int)[0].tolist() == aps
    assert prediction_sets(row, ConformalRule("aps", 0.949, 0.1, 9)).sum() == 2
    assert prediction_sets(row, ConformalRule("aps", 0.951, 0.1, 9)).sum() == 3


def test_the_likeliest_grade_is_in_an_adaptive_set_and_need_not_be_in_the_other():
    row = np.array([[0.6, 0.4]])
    assert prediction_sets(row, ConformalRule("aps", 0.3, 0.1, 9)).tolist() == [[True, False]]
    assert prediction_sets(row, ConformalRule("lac", 0.3, 0.1, 9)).tolist() == [[False, False]]


def test_tied_grades_are_in_together_whatever_their_order():
    row = np.array([0.4, 0.2, 0.2, 0.2])
    rule = ConformalRule("aps", 0.5, 0.1, 9)
    for order in itertools.permutations(range(4)):
        assert prediction_sets(row[list(order)][None], rule)[0].tolist() == [at == 0 for at in order]


def test_the_least_likely_grade_scores_exactly_one():
    rng = np.random.default_rng(3)
    probabilities = rng.dirichlet(np.full(7, 0.3), 500)
    assert prediction_sets(probabilities, ConformalRule("aps", 1.0, 0.1, 9)).all()


def test_sets_are_judged_by_image_and_by_patient():
    sets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]])
    found = judge_sets(sets, [0, 2, 1, 2], ["a", "b", "b", "a"])
    assert found.coverage[:3] == (2, 4, 0.5)
    assert found.coverage.low == pytest.approx(0.0676, abs=1e-4)
    assert found.patients[:3] == (1, 2, 0.5)
    assert (found.mean_size, found.single, found.empty, found.whole) == (1.5, 0.25, 0.25, 0.25)
    assert judge_sets(sets, [0, 2, 1, 2]).patients is None


def test_unfit_input():
    probabilities, labels = made(np.random.default_rng(0), 30)
    for alpha in (0, 1, -0.1, math.nan):
        with pytest.raises(SettingsError, match="error rate"):
            conformal_rule(probabilities, labels, alpha)
    with pytest.raises(SettingsError, match="lac"):
        conformal_rule(probabilities, labels, 0.1, "raps")
    with pytest.raises(TrainingError, match="not a class"):
        conformal_rule(probabilities, labels + 4)
    with pytest.raises(TrainingError, match="not finite"):
        prediction_sets([[math.nan, 1.0]], ConformalRule("lac", 0.5, 0.1, 9))
    with pytest.raises(TrainingError, match="without images"):
        judge_sets(np.empty((0, 3)), np.empty(0, dtype=int))
    with pytest.raises(TrainingError, match="one patient an image"):
        judge_sets(np.ones((2, 3)), [0, 1], ["a"])
