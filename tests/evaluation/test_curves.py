"""Curves against the figures that they stand for, and against loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedretina.errors import SettingsError, TrainingError
from fedretina.evaluation.curves import reliability, risk_coverage
from fedretina.evaluation.metrics import aurc, ece
from fedretina.exchange.min_count import place


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_reliability_bins_give_the_ece(seed, bins):
    rng = np.random.default_rng(seed)
    probabilities, labels = rng.dirichlet(np.full(4, 0.5), 120), rng.integers(0, 4, 120)
    found = reliability(probabilities.max(1), probabilities.argmax(1) == labels, bins)
    assert found.ece == pytest.approx(ece(probabilities, labels, bins), abs=1e-14)
    assert found.images.sum() == 120
    assert found.edges[0] == 0
    assert found.edges[-1] == 1


def test_reliability_bins_against_a_loop():
    rng = np.random.default_rng(7)
    confidence, right = np.round(rng.uniform(0, 1, 80), 1), rng.uniform(0, 1, 80) < 0.6
    found = reliability(confidence, right, 10)
    edges = np.linspace(0, 1, 11)
    for at, (low, high) in enumerate(itertools.pairwise(edges)):
        inside = [n for n, value in enumerate(confidence) if low < value <= high or (at == 0 and value == 0)]
        assert found.images[at] == len(inside)
        assert found.right[at] == sum(right[n] for n in inside)
        assert found.confidence[at] == pytest.approx(sum(confidence[n] for n in inside))


def test_a_value_on_an_edge_stands_below_it():
    assert place([0.0, 0.25, 0.2500001, 0.5, 1.0], 4).tolist() == [0, 0, 1, 1, 3]
    with pytest.raises(SettingsError, match="1 bin or more"):
        place([0.5], 0)


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_of_the_risk_is_the_aurc(seed):
    rng = np.random.default_rng(seed)
    u, wrong = np.round(rng.uniform(0, 1, 60), 1), rng.uniform(0, 1, 60) < 0.4
    curve = risk_coverage(u, wrong)
    assert curve.risk.mean() == pytest.approx(aurc(u, wrong), abs=1e-14)
    assert curve.coverage[-1] == 1
    assert curve.risk[-1] == pytest.approx(wrong.mean())


def test_risk_coverage_without_ties_against_a_loop_and_with_all_tied():
    u, wrong = np.array([0.9, 0.1, 0.5, 0.3]), np.array([1, 0, 1, 0])
    curve = risk_coverage(u, wrong)
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == [0, 0, pytest.approx(1 / 3), 0.5]
    assert risk_coverage(np.full(4, 0.5), wrong).risk.tolist() == [0.5] * 4
    assert risk_coverage([0.2], [1]).risk.tolist() == [1.0]


@pytest.mark.parametrize("curve", [reliability, risk_coverage])
@pytest.mark.parametrize(
    ("values", "verdicts", "sentence"),
    [([], [], "without images"), ([math.nan], [0], "not finite"), ([0.1], [0, 1], "one verdict per image")],
)
def test_unfit_input_is_refused(curve, values, verdicts, sentence):
    with pytest.raises(TrainingError, match=sentence):
        curve(values, verdicts)
