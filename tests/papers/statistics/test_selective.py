"""Selective prediction: FedEE's rule with its ties, both metrics against loops, and the means over sites."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from fedretina.errors import SettingsError, TrainingError
from fedretina_papers.statistics.selective import (
    kept_at,
    selective_accuracy,
    selective_balanced_accuracy,
)

U = [0.1, 0.2, 0.3, 0.4, 0.5]


def test_the_surest_answers_stay():
    assert kept_at(U, 0.0).tolist() == [True] * 5
    assert kept_at(U, 0.4).tolist() == [True, True, True, False, False]  # the 0.6 quantile lies at 0.34
    assert kept_at(U, 1.0).tolist() == [True, False, False, False, False]


def test_ties_stay_even_where_fewer_are_referred_than_asked():
    assert kept_at([0.5, 0.5, 0.5, 0.5], 0.9).all()
    assert kept_at([0.1, 0.5, 0.5, 0.5], 0.4).all()
    assert kept_at([0.7], 1.0).tolist() == [True]


def test_accuracy_of_what_is_left_does_not_depend_on_order():
    rng = np.random.default_rng(0)
    u, wrong = rng.random(80).round(1), rng.random(80) < 0.4
    found = selective_accuracy(u, wrong, 0.4)
    edge = sorted(u)[int(0.6 * 79)] * (1 - 0.6 * 79 % 1) + sorted(u)[int(0.6 * 79) + 1] * (0.6 * 79 % 1)
    stay = [bad for value, bad in zip(u, wrong, strict=True) if value <= edge]
    assert found == pytest.approx(1 - np.mean(stay))
    order = rng.permutation(80)
    assert selective_accuracy(u[order], wrong[order], 0.4) == found


def test_a_certain_mistake_stays_and_costs():
    assert selective_accuracy(U, [1, 0, 0, 0, 0], 0.4) == pytest.approx(2 / 3)
    assert selective_accuracy(U, [0, 0, 0, 1, 1], 0.4) == 1.0


def test_balanced_accuracy_is_over_the_classes_that_are_left():
    rng = np.random.default_rng(1)
    u, labels = rng.random(60), rng.integers(0, 3, 60)
    predicted = np.where(rng.random(60) < 0.6, labels, 0)
    kept = kept_at(u, 0.3)
    found = selective_balanced_accuracy(u, predicted, labels, 0.3)
    assert found == pytest.approx(balanced_accuracy_score(labels[kept], predicted[kept]))
    assert selective_balanced_accuracy([0.1, 0.2, 0.9], [0, 0, 0], [0, 0, 1], 0.4) == 1.0  # a class given up


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_no_such_share(rate):
    with pytest.raises(SettingsError, match="0 to 1"):
        kept_at(U, rate)


def test_unfit_input():
    with pytest.raises(TrainingError, match="not finite"):
        kept_at([math.nan, 0.1], 0.4)
    with pytest.raises(TrainingError, match="without images"):
        selective_accuracy([], [], 0.4)
    with pytest.raises(TrainingError, match="same images"):
        selective_balanced_accuracy(U, [0, 1], [0, 1], 0.4)
