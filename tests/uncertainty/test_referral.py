"""The referral threshold against a brute force, closed cases and every degenerate input; the decision for one image."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from fedretina.errors import TrainingError
from fedretina.settings.scheme import GradingScheme, preset
from fedretina.settings.theta import YoudenSettings
from fedretina.uncertainty.referral import NO_ANSWER, UNREADABLE, refer, referral_threshold
from fedretina.uncertainty.theta import youden_theta


def brute_force(u, wrong):
    """The smallest threshold of the largest 2 TPR - FPR, in fractions."""
    best = (Fraction(-2), math.inf)
    for threshold in sorted(set(u.tolist()), reverse=True):
        flagged = u >= threshold
        gain = 2 * Fraction(int((flagged & wrong).sum()), int(wrong.sum()))
        gain -= Fraction(int((flagged & ~wrong).sum()), int((~wrong).sum()))
        if gain >= best[0]:
            best = (gain, threshold)
    return best[1]


def random_case(seed, tied):
    rng = np.random.default_rng(seed)
    u = rng.uniform(0.01, 1, int(rng.integers(30, 120)))
    wrong = rng.uniform(0, 1, u.size) < 0.1 + 0.7 * u**2
    wrong[:10] = [True, False] * 5
    return (np.ceil(u * 8) / 8 if tied else u), wrong


def test_it_is_the_brute_force_maximum():
    reasons = set()
    for case in itertools.product(range(40), (False, True)):
        u, wrong = random_case(*case)
        best = brute_force(u, wrong)
        found = referral_threshold(u, wrong)
        expected = (0.0, "refer_all") if best == u.min() else (best, "measured")
        assert (found.value, found.reason) == expected, case
        flagged = u >= found.value
        assert (found.images, found.errors) == (u.size, wrong.sum()), case
        assert (found.caught, found.alarms) == ((flagged & wrong).sum(), (flagged & ~wrong).sum()), case
        reasons.add(found.reason)
    assert reasons == {"measured", "refer_all"}


def test_a_case_in_closed_form():
    # 10 wrong of u .6 to .96, 30 right of u .01 to .59: all wrong answers lie above all right ones.
    u = np.concatenate([0.6 + 0.04 * np.arange(10), 0.01 + 0.02 * np.arange(30)])
    wrong = np.arange(40) < 10
    found = referral_threshold(u, wrong)
    assert found == (0.6, "measured", 40, 10, 10, 0)


def by_doubt(*runs):
    """Verdicts from the most doubtful down, as runs of (wrong?, how many)."""
    wrong = np.repeat([bool(kind) for kind, _ in runs], [count for _, count in runs])
    return np.linspace(1, 0.1, wrong.size), wrong


def test_it_refers_more_than_theta_does():
    u, wrong = by_doubt((1, 5), (0, 18), (1, 5), (0, 12))
    assert youden_theta(u, wrong, YoudenSettings(), None).value == u[4]  # 1/2, against 1 - 18/30 = 2/5
    assert referral_threshold(u, wrong).value == u[27]  # 2 - 18/30 = 7/5, against 1


def test_of_equal_gain_the_smallest_threshold_wins_and_rounding_decides_no_tie():
    # 12/10, then 16/10 - 8/20, then 20/10 - 16/20: all 6/5, but in floating point the second is the largest.
    u, wrong = by_doubt((1, 6), (0, 8), (1, 2), (0, 8), (1, 2), (0, 4))
    assert max(2 * 6 / 10, 2 * 10 / 10 - 16 / 20) < 2 * 8 / 10 - 8 / 20
    assert referral_threshold(u, wrong) == (u[25], "measured", 30, 10, 10, 16)


def test_a_tie_with_referring_everything_refers_everything():
    u, wrong = by_doubt((1, 5), (0, 10), (1, 5))  # 1 after the first five, and 1 at the end
    assert referral_threshold(u, wrong)[:2] == (0.0, "refer_all")


def test_the_order_of_images_changes_nothing():
    u, wrong = random_case(3, tied=True)
    order = np.random.default_rng(0).permutation(u.size)
    assert referral_threshold(u, wrong) == referral_threshold(u[order], wrong[order])


U = np.linspace(0.1, 0.9, 40)
NONE, ALL = np.zeros(40, dtype=bool), np.ones(40, dtype=bool)


def some(*at):
    return np.isin(np.arange(40), at)


DEGENERATE = {
    "no images": (np.array([]), np.array([], dtype=bool), 0.0, "too_few_images"),
    "one image": (U[:1], ALL[:1], 0.0, "too_few_images"),
    "nineteen images": (U[:19], some(*range(9, 19))[:19], 0.0, "too_few_images"),
    "all wrong": (U, ALL, 0.0, "too_few_right"),
    "four right": (U, ~some(0, 1, 2, 3), 0.0, "too_few_right"),
    "tied": (np.full(40, 0.6), some(*range(20)), 0.0, "tied"),
    "tied without errors": (np.full(40, 0.6), NONE, 0.0, "tied"),
    "no errors": (U, NONE, U[-1], "no_errors"),
    "one error": (U, some(30), U[30], "too_few_errors"),
    "four errors": (U, some(20, 30, 38, 39), U[20], "too_few_errors"),
    "the surest is wrong": (U, some(0, 39), 0.0, "too_few_errors"),
    "anti-informative": (U, some(*range(15)), 0.0, "refer_all"),
    "five errors": (U, some(35, 36, 37, 38, 39), U[35], "measured"),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_splits_take_the_safe_side_and_say_why(name):
    u, wrong, value, reason = DEGENERATE[name]
    found = referral_threshold(u, wrong)
    assert (found.value, found.reason) == (value, reason)
    assert math.isfinite(found.value)
    if reason == "too_few_errors":
        assert found.caught == found.errors
    if value == 0:
        assert found.caught + found.alarms == u.size


@pytest.mark.parametrize(
    ("u", "wrong"),
    [
        (np.array([0.1, math.nan]), np.array([0, 1])),
        (np.array([0.1, math.inf]), np.array([0, 1])),
        (np.array([0.1, 1.2]), np.array([0, 1])),
        (np.array([-0.1, 0.2]), np.array([0, 1])),
        (np.array([0.1, 0.2]), np.array([0, 2])),
        (np.array([0.1, 0.2]), np.array([0])),
        (np.array([]), np.array([0])),
    ],
)
def test_unfit_input_is_refused(u, wrong):
    with pytest.raises(TrainingError):
        referral_threshold(u, wrong)


@pytest.mark.parametrize(
    ("grade", "u", "reasons"),
    [
        (0, 0.1, ()),
        (1, 0.49, ()),
        (1, 0.5, ("doubtful",)),
        (2, 0.1, ("referable grade",)),
        (4, 0.9, ("referable grade", "doubtful")),
        (5, 0.1, ("ungradable",)),
        (5, 0.6, ("ungradable", "doubtful")),
        (0, math.nan, ("doubtful",)),
    ],
)
def test_one_image_is_referred_with_all_its_reasons(grade, u, reasons):
    assert refer(grade, u, 0.5, preset("icdr5_ungradable")) == (bool(reasons), reasons)


def test_threshold_0_refers_even_what_is_wholly_sure():
    assert refer(0, 0.0, 0.0, preset("icdr5")) == (True, ("doubtful",))


def test_without_referable_grades_only_doubt_and_ungradable_refer():
    scheme = GradingScheme(grades=("a", "b", "c"), ungradable="c")
    assert refer(1, 0.1, 0.5, scheme) == (False, ())
    assert refer(2, 0.1, 0.5, scheme) == (True, ("ungradable",))
    assert refer(1, 0.6, 0.5, scheme) == (True, ("doubtful",))
    assert refer(1, 0.1, 0.5, GradingScheme(grades=("a", "b"))) == (False, ())


def test_what_has_no_answer_is_referred():
    assert UNREADABLE == (True, ("unreadable image",))
    assert NO_ANSWER == (True, ("no answer",))
