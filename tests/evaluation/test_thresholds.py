"""What other thresholds would refer and miss, against the count of patients by the referral rule itself."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.evaluation.figures import LabelledPredictions, triage
from fedretina.evaluation.thresholds import threshold_curve
from fedretina.settings.scheme import GradingScheme, preset

SCHEME = preset("icdr5_ungradable")


def drawn(count=400, seed=2, u=None):
    rng = np.random.default_rng(seed)
    odds = rng.dirichlet(np.ones(6) * 0.5, count)
    doubt = rng.uniform(0.2, 0.9, count) if u is None else np.full(count, u)
    patients = [f"p{at}" for at in rng.integers(0, count // 2, count)]
    return LabelledPredictions(odds, doubt, rng.integers(0, 6, count), patients)


@pytest.mark.parametrize("promise", [None, 0.4])
def test_every_threshold_counts_as_the_referral_rule_does(promise):
    labelled = drawn()
    curve = threshold_curve(labelled, 0.5, SCHEME, promise)
    assert len(curve.at) <= 102
    assert 0.5 in curve.at
    assert (curve.at[0], curve.at[-1]) == (0.0, 1.0)
    assert list(curve.at) == sorted(set(curve.at))
    for at, referred, missed in zip(curve.at, curve.referred, curve.missed, strict=True):
        told = triage(labelled, at, SCHEME, promise)
        assert (referred, curve.patients) == (told.load.k, told.load.n)
        assert (missed, curve.ill) == (told.missed.k, told.missed.n)
    assert (curve.referred[0], curve.missed[0]) == (curve.patients, 0)


def test_images_of_u_1_are_doubtful_at_every_threshold():
    curve = threshold_curve(drawn(u=1.0), 0.5, SCHEME)
    assert set(curve.referred) == {curve.patients}


def test_without_referable_grades_nobody_is_known_to_be_missed():
    plain = GradingScheme(grades=SCHEME.grades, labels=SCHEME.labels, ungradable="ungradable")
    curve = threshold_curve(drawn(), 0.5, plain)
    assert (curve.ill, curve.missed) == (None, ())


def test_an_empty_split():
    nothing = LabelledPredictions(np.zeros((0, 6)), np.zeros(0), np.zeros(0, np.int64), ())
    curve = threshold_curve(nothing, 0.0, SCHEME)
    assert (curve.patients, curve.ill, curve.at, curve.referred, curve.missed) == (0, 0, (0.0, 1.0), (0, 0), (0, 0))
