"""Telling strangers by u: against scikit-learn, FPR at 95 % by counting, and empty sets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics

from fedretina.errors import TrainingError
from fedretina_papers.statistics.out_of_distribution import out_of_distribution


def slow_precision(scores, positive):
    """Precision at the threshold of each positive, without interpolation."""
    return np.mean([np.mean(positive[scores >= at]) for at in scores[positive == 1]])


@pytest.mark.parametrize("places", [8, 1])
def test_against_scikit_learn(places):
    rng = np.random.default_rng(places)
    inside, outside = rng.beta(2, 5, 120).round(places), rng.beta(4, 3, 70).round(places)
    u, stranger = np.concatenate([inside, outside]), np.repeat([0, 1], [120, 70])
    found = out_of_distribution(inside, outside)
    assert found.auroc == pytest.approx(metrics.roc_auc_score(stranger, u))
    assert found.aupr == pytest.approx(slow_precision(u, stranger))
    assert found.outside == 70
    # The least share of strangers that passes over all thresholds where 95 % of our own do.
    passing = [t for t in u if np.mean(inside <= t) >= 0.95 - 1e-12]
    assert found.fpr95 == pytest.approx(min(np.mean(outside <= t) for t in passing))


def test_the_ends():
    apart = out_of_distribution([0.1, 0.2], [0.8, 0.9])
    assert (apart.auroc, apart.aupr, apart.fpr95) == (1, 1, 0)
    same = out_of_distribution([0.5] * 20, [0.5] * 10)
    assert (same.auroc, same.aupr, same.fpr95) == (0.5, pytest.approx(1 / 3), 1)
    reverse = out_of_distribution([0.8, 0.9], [0.1])
    assert (reverse.auroc, reverse.fpr95) == (0, 1)


def test_95_of_100_and_20_are_whole_images():
    assert out_of_distribution(np.arange(100), [94.0, 94.5]).fpr95 == 0.5
    assert out_of_distribution(np.arange(20), [18.0, 18.5]).fpr95 == 0.5


def test_an_empty_set_has_no_figures():
    assert out_of_distribution([], [0.5]) == (None, None, None, 1)
    assert out_of_distribution([0.5], []) == (None, None, None, 0)


def test_unfit_input():
    with pytest.raises(TrainingError, match="not finite"):
        out_of_distribution([0.1, math.nan], [0.2])
    with pytest.raises(TrainingError, match="shapes"):
        out_of_distribution([[0.1]], [0.2])
