"""A threshold for a site with few ill patients: what may leave, what is summed, how it is drawn; slow forms, limits."""

import math

import numpy as np
import pytest
from scipy.stats import beta

from fedretina.aggregation.admission import admit_scalars
from fedretina.errors import RefusedError
from fedretina.evaluation.referral_curve import PRIOR, curve_of_others, drawn_threshold, ill_counts
from fedretina.settings.scalars import CURVE, CURVE_EDGES, allowed_scalars
from fedretina.settings.site import PromiseSettings

ASKED = PromiseSettings(missed=0.1, sure=0.9, drawn=True)
BINS = len(CURVE)


def scores(rng, ill, seen=0.5):
    """Chances of disease of ill patients, of whom other reasons refer a share."""
    return np.where(rng.uniform(size=ill) < seen, math.inf, rng.beta(2, 5, ill))


def test_a_count_is_of_nobody_or_of_enough_and_stands_at_the_lower_end_of_its_bin():
    rng = np.random.default_rng(0)
    for ill in (5, 8, 30, 300):
        own = scores(rng, ill)
        sent = ill_counts(own, 5)
        assert set(sent) <= set(CURVE)
        assert sum(sent.values()) == ill
        assert min(sent.values()) >= 5
        told = np.asarray([sent.get(name, 0) for name in CURVE])
        for at, edge in enumerate([*CURVE_EDGES, math.inf]):
            # Never fewer seem to pass below a threshold than do.
            assert told[:at].sum() >= (own < edge).sum()
    exact = ill_counts(np.repeat([0.0, 0.01, 0.5, math.inf], [5, 5, 7, 9]), 5)
    assert exact == {"curve_00": 5, "curve_01": 5, "curve_12": 7, "curve_15": 9}
    assert ill_counts(np.full(4, 0.3), 5) == {}
    assert ill_counts([], 2) == {}


@pytest.mark.attack("a hostile site", "counts single ill patients by chance of disease", "its answer is refused")
def test_the_server_takes_no_count_of_one():
    names = allowed_scalars("curve", supervised=True)
    admit_scalars({"curve_03": 2.0}, names)
    for name, value, words in (("curve_03", 1.0, "expected 2"), ("curve_16", 5.0, "is not one"), ("theta", 0.5, "is")):
        with pytest.raises(RefusedError, match=words):
            admit_scalars({name: value}, names)


def test_a_site_gets_the_sum_of_at_least_two_others():
    sites = {"a": {"curve_00": 6.0, "curve_15": 5.0}, "b": {"curve_00": 7.0}, "c": {}, "d": {"curve_03": 8.0}}
    assert sum(curve_of_others(sites, "c")) == 26
    assert curve_of_others(sites, "a") == (7, 0, 0, 8, *[0] * (BINS - 4))
    assert curve_of_others(sites, "absent") == curve_of_others(sites, "c")
    assert curve_of_others({"a": sites["a"], "b": sites["b"]}, "a") == ()  # would be b's own
    assert curve_of_others({"a": {}, "b": {}, "c": {}}, "a") == ()


def slowly(own, curve, asked):
    """The largest threshold that satisfies the posterior, asked one by one; None without any."""
    places, best = [*CURVE_EDGES, math.inf], None
    weight = min(PRIOR, sum(curve))
    for at in sorted({*own, *places}):
        below = sum(count for count, edge in zip(curve, places, strict=True) if edge < at)
        usual = (below + 0.5) / (sum(curve) + 1)
        passing = sum(one < at for one in own)
        a, b = weight * usual + passing, weight * (1 - usual) + len(own) - passing
        if beta.cdf(asked.missed, a, b) >= asked.sure:
            best = at
    return best


@pytest.mark.parametrize("ill", [0, 3, 12, 40])
def test_the_threshold_is_the_largest_that_the_posterior_allows(ill):
    rng = np.random.default_rng(ill)
    seen = set()
    for others in (12, 60, 500):
        for share in (0.1, 0.8, 1.0):
            own = scores(rng, ill, 0.7)
            sent = ill_counts(scores(rng, others, share), 5)
            curve = [round(sent.get(name, 0)) for name in CURVE]
            found, expected = drawn_threshold(own, curve, ASKED), slowly(own.tolist(), curve, ASKED)
            seen.add(expected if expected is None else math.isinf(expected))
            if expected is None:
                assert found is None
                continue
            assert (math.inf if found.threshold is None else found.threshold) == expected
            assert found.share == min(PRIOR, others) / (min(PRIOR, others) + ill)
            assert found.passed == int((own[np.isfinite(own)] < expected).sum())
    assert False in seen


def test_without_others_there_is_none_and_without_own_patients_it_is_theirs():
    curve = [0, 0, 5, 0, 0, 5, *[0] * (BINS - 7), 190]
    assert drawn_threshold([0.2, 0.4], [], ASKED) is None
    assert drawn_threshold([0.2, 0.4], [0] * BINS, ASKED) is None
    theirs = drawn_threshold([], curve, ASKED)
    assert theirs.share == 1
    assert theirs.passed == 0
    # Of 200 others 5 pass below 3 % and 10 in all: a prior of 30 with a share of .05 leaves too much above a tenth.
    assert theirs.threshold == 0.07
    many = [0, 0, 5, 0, 0, 95, *[0] * (BINS - 7), 900]
    assert drawn_threshold([], many, ASKED).threshold == 0.07
    # The more own patients, the less the others' curve says: those that pass at 1 % draw it down, those found up.
    assert drawn_threshold(np.full(40, 0.005), curve, ASKED).threshold == 0.005
    assert drawn_threshold(np.full(400, math.inf), many, ASKED).threshold is None


def test_bins_never_let_more_pass_than_the_patients_in_them():
    """So what docs/promise.md measured with each patient at the exact chance holds of the product."""
    rng = np.random.default_rng(11)
    for _ in range(20):
        own, others = scores(rng, 14, 0.8), scores(rng, 90, 0.9)
        sent = ill_counts(others, 5)
        found = drawn_threshold(own, [round(sent.get(name, 0)) for name in CURVE], ASKED)
        at = np.unique([*own, *others, math.inf])
        usual, passing = (np.searchsorted(np.sort(others), at) + 0.5) / 91, np.searchsorted(np.sort(own), at)
        fits = at[beta.cdf(0.1, 30 * usual + passing, 30 * (1 - usual) + 14 - passing) >= 0.9]
        assert (math.inf if found.threshold is None else found.threshold) <= max(fits)
