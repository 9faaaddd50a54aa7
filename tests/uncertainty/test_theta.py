"""Theta against scikit-learn, a brute force, closed cases and every degenerate input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.metrics import roc_curve

from fedretina.errors import TrainingError
from fedretina.settings.theta import OfficialSettings, ThetaSettings, YoudenSettings
from fedretina.uncertainty.theta import official_theta, roc, site_theta, youden_theta

LOOSE = YoudenSettings(min_errors=1)
U = np.array([0.1, 0.2, 0.8, 0.9])


def brute_force(u: np.ndarray, wrong: np.ndarray) -> tuple[float, Fraction]:
    best = (Fraction(-2), 0.0)
    for threshold in sorted(set(u.tolist()), reverse=True):
        flagged = u >= threshold
        gain = Fraction(int((flagged & wrong).sum()), int(wrong.sum()))
        gain -= Fraction(int((flagged & ~wrong).sum()), int((~wrong).sum()))
        if gain > best[0]:
            best = (gain, threshold)
    return best[1], best[0]


def random_case(seed: int, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    u = rng.uniform(0.01, 1, int(rng.integers(4, 60)))
    wrong = rng.uniform(0, 1, u.size) < 0.2 + 0.5 * u
    wrong[:2] = (True, False)
    return (np.ceil(u * 8) / 8 if tied else u), wrong


def random_cases(seeds: int) -> Iterator[tuple[tuple[int, bool], np.ndarray, np.ndarray]]:
    for case in itertools.product(range(seeds), (False, True)):
        yield case, *random_case(*case)


def test_roc_points_are_scikit_learns_without_the_first():
    for case, u, wrong in random_cases(25):
        fpr, tpr, thresholds = roc_curve(wrong, u, drop_intermediate=False)
        curve = roc(u, wrong)
        assert curve.thresholds.tolist() == thresholds[1:].tolist(), case
        assert (curve.hits / wrong.sum()).tolist() == pytest.approx(tpr[1:].tolist()), case
        assert (curve.alarms / (~wrong).sum()).tolist() == pytest.approx(fpr[1:].tolist()), case


def test_theta_is_the_brute_force_maximum():
    for case, u, wrong in random_cases(40):
        threshold, gain = brute_force(u, wrong)
        theta = youden_theta(u, wrong, LOOSE, previous=0.7)
        if gain > 0:
            assert theta.value == threshold, case
            assert theta.youden == pytest.approx(float(gain)), case
            assert theta.reason == "youden", case
        else:
            assert (theta.value, theta.youden, theta.reason) == (0.7, None, "uninformative"), case
        assert (theta.errors, theta.samples) == (int(wrong.sum()), u.size), case


def test_the_specifications_case():
    theta = youden_theta(U, np.array([0, 0, 1, 1]), LOOSE, None)
    assert (theta.value, theta.youden, theta.reason, theta.errors, theta.samples) == (
        0.8,
        1.0,
        "youden",
        2,
        4,
    )


def test_of_equal_j_the_largest_threshold_wins():
    # J is 1/2 at .9 and again at .3 (tpr 1, fpr 1/2), below between them.
    theta = youden_theta(np.array([0.9, 0.5, 0.3, 0.1]), np.array([1, 0, 1, 0]), LOOSE, None)
    assert (theta.value, theta.youden) == (0.9, 0.5)


def test_rounding_decides_no_tie():
    # J is 1/10 after the first image and 8/10 - 7/10 later: equal, but 0.8 - 0.7 > 0.1 in floating point.
    wrong = np.array([1, *[0, 1] * 7, 0, 0, 0, 1, 1], dtype=bool)
    u = np.linspace(1.0, 0.05, 20)
    fpr, tpr, _ = roc_curve(wrong, u, drop_intermediate=False)
    assert (tpr - fpr)[1:].argmax() > 0
    assert youden_theta(u, wrong, LOOSE, None).value == 1.0 == brute_force(u, wrong)[0]


def test_the_order_of_images_changes_nothing():
    u, wrong = random_case(3, tied=True)
    order = np.random.default_rng(0).permutation(u.size)
    assert youden_theta(u, wrong, LOOSE, None) == youden_theta(u[order], wrong[order], LOOSE, None)


def test_float32_and_whole_number_verdicts_are_taken():
    u, wrong = random_case(4, tied=False)
    narrow = u.astype(np.float32)
    theta = youden_theta(narrow, wrong.astype(np.int64), LOOSE, None)
    assert theta == youden_theta(narrow.astype(np.float64), wrong, LOOSE, None)


DEGENERATE = {
    "empty": (np.array([]), np.array([], dtype=bool)),
    "not_finite": (np.array([0.1, math.nan, 0.8, 0.9]), np.array([0, 0, 1, 1])),
    "no_errors": (U, np.zeros(4, dtype=bool)),
    "all_errors": (U, np.ones(4, dtype=bool)),
    "tied": (np.full(4, 0.6), np.array([0, 0, 1, 1])),
    "uninformative": (U, np.array([1, 1, 0, 0])),
}


@pytest.mark.parametrize("reason", DEGENERATE)
@pytest.mark.parametrize(
    ("fallback", "previous", "value"),
    [("previous", 0.3, 0.3), ("previous", None, 0.5), ("half", 0.3, 0.5), ("half", None, 0.5)],
)
def test_degenerate_input_gives_the_fallback_and_its_reason(reason, fallback, previous, value):
    settings = YoudenSettings(min_errors=1, fallback=fallback)
    theta = youden_theta(*DEGENERATE[reason], settings, previous)
    assert (theta.value, theta.youden, theta.reason) == (value, None, reason)


@pytest.mark.parametrize(
    ("reason", "value"),
    [("empty", 0.5), ("not_finite", 0.5), ("no_errors", 0.5), ("tied", 0.6), ("uninformative", 0.5)],
)
def test_the_median_fallback(reason, value):
    settings = YoudenSettings(min_errors=1, fallback="median_u")
    assert youden_theta(*DEGENERATE[reason], settings, 0.3).value == pytest.approx(value)


def test_the_median_fallback_takes_the_median_and_never_zero():
    settings = YoudenSettings(min_errors=1, fallback="median_u")
    assert youden_theta(np.array([0.1, 0.3, 0.4]), np.zeros(3), settings, None).value == 0.3
    assert youden_theta(np.zeros(3), np.zeros(3), settings, None).value == 0.5


def test_infinity_is_not_finite():
    theta = youden_theta(np.array([0.1, math.inf]), np.array([0, 1]), LOOSE, None)
    assert (theta.value, theta.reason) == (0.5, "not_finite")


@pytest.mark.parametrize(
    ("errors", "reason"), [(4, "too_few_errors"), (5, "youden"), (15, "youden"), (16, "too_few_right")]
)
def test_default_asks_for_five_errors_and_five_right(errors, reason):
    u = np.linspace(0.05, 1, 20)
    theta = youden_theta(u, np.arange(20) >= 20 - errors, YoudenSettings(), 0.4)
    assert theta.reason == reason
    assert theta.value == pytest.approx(u[20 - errors] if reason == "youden" else 0.4)


def test_smoothing_is_a_moving_average_of_measured_values():
    settings = YoudenSettings(min_errors=1, smoothing=0.75)
    wrong = np.array([0, 0, 1, 1])
    assert youden_theta(U, wrong, settings, 0.4).value == pytest.approx(0.75 * 0.4 + 0.25 * 0.8)
    assert youden_theta(U, wrong, settings, None).value == 0.8
    half = YoudenSettings(min_errors=1, smoothing=0.75, fallback="half")
    assert youden_theta(U, np.zeros(4), half, 0.4).value == 0.5


def pre_1_3_theta(u: np.ndarray, wrong: np.ndarray) -> float:
    fpr, tpr, thresholds = roc_curve(wrong, u)
    thresholds[0] = u.max() + 1
    gain = list(tpr - fpr)
    return min(float(thresholds[gain.index(max(gain))]), 2.0)


OFFICIAL = OfficialSettings(), None


def test_official_theta_is_scikit_learns_curve_with_the_first_point_of_its_day():
    for case, u, wrong in random_cases(40):
        for verdict in (wrong, ~wrong):
            assert official_theta(u, verdict, *OFFICIAL).value == pre_1_3_theta(u, verdict), case


def test_official_theta_skips_the_points_that_roc_curve_leaves_out():
    # An error at u = 1, nine ties of an error and a right answer, a right answer: J is 1/10 up to rounding at
    # each tie, and the rounding is largest at the eighth point, which roc_curve leaves out.
    u = np.repeat(np.linspace(1.0, 0.1, 11), [1, *[2] * 9, 1])
    wrong = np.array([1, *[0, 1] * 9, 0], dtype=bool)
    fpr, tpr, _ = roc_curve(wrong, u, drop_intermediate=False)
    assert (tpr - fpr)[1:].argmax() == 7
    assert official_theta(u, wrong, *OFFICIAL).value == pre_1_3_theta(u, wrong) == 1.0


@pytest.mark.parametrize("reason", ["empty", "not_finite", "no_errors", "all_errors"])
def test_official_theta_is_half_where_the_published_code_catches_an_error(reason):
    theta = official_theta(*DEGENERATE[reason], *OFFICIAL)
    assert (theta.value, theta.youden, theta.reason) == (0.5, None, reason)


@pytest.mark.parametrize(("reason", "value"), [("tied", 1.6), ("uninformative", 1.9)])
def test_official_theta_is_finite_where_the_published_code_sends_infinity(reason, value):
    u, wrong = DEGENERATE[reason]
    fpr, tpr, thresholds = roc_curve(wrong, u)
    assert np.isinf(thresholds[(tpr - fpr).argmax()])
    theta = official_theta(u, wrong, *OFFICIAL)
    assert (theta.value, theta.reason) == (pytest.approx(value), reason)


def test_the_rule_is_chosen_by_the_setting_and_ignores_the_counts():
    official = OfficialSettings()
    u, wrong = DEGENERATE["tied"]
    assert site_theta(u, wrong, official, 0.3) == official_theta(u, wrong, *OFFICIAL)
    assert site_theta(U, np.array([0, 0, 1, 1]), official, None).value == 0.8


@pytest.mark.parametrize("settings", [LOOSE, OfficialSettings()])
@pytest.mark.parametrize(
    ("u", "wrong"),
    [
        (np.array([0.1, 0.2]), np.array([1])),
        (np.array([[0.1, 0.2]]), np.array([[0, 1]])),
        (np.array([0.1, 1.2]), np.array([0, 1])),
        (np.array([-0.1, 0.2]), np.array([0, 1])),
        (np.array([0.1, 0.2]), np.array([0, 2])),
    ],
)
def test_unfit_input_is_refused(settings, u, wrong):
    with pytest.raises(TrainingError, match="theta needs"):
        site_theta(u, wrong, settings, None)


@pytest.mark.parametrize("previous", [0.0, -1.0, 2.5, math.nan, math.inf])
def test_a_previous_theta_outside_its_range_is_refused(previous):
    with pytest.raises(TrainingError, match="previous theta"):
        youden_theta(U, np.array([0, 0, 1, 1]), LOOSE, previous)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"min_errors": 0}, "Give 1 or more"),
        ({"smoothing": 1.0}, r"must lie in \[0, 1\)"),
        ({"smoothing": -0.1}, r"must lie in \[0, 1\)"),
        ({"smoothing": math.nan}, r"must lie in \[0, 1\)"),
        ({"rule": "official", "smoothing": 0.5}, "'official' does not read it, 'youden' alone does"),
        ({"source": "test"}, "train_online"),
        ({"threshold": 0.5}, "Extra inputs"),
    ],
)
def test_unfit_settings_are_refused(values, sentence):
    with pytest.raises(ValidationError, match=sentence):
        ThetaSettings.of(values)


def test_a_reference_needs_two_grades():
    assert YoudenSettings(reference_grades=5).reference_grades == 5
    with pytest.raises(ValidationError, match="2 grades or more"):
        ThetaSettings.of({"reference_grades": 1})
