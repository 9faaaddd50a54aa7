"""Stouffer, dependent seeds and Holm, each against a slow form or a closed case."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import combine_pvalues, norm

from fedretina.errors import SettingsError
from fedretina_papers.statistics.multiple_tests import holm, over_dependent, stouffer, two_sided


def _closed_testing(values):
    """A hypothesis falls when every family with it in falls by Bonferroni: the idea that Holm's steps shorten."""
    places = range(len(values))
    families = [family for size in range(1, len(values) + 1) for family in combinations(places, size)]
    return [
        max(min(1, len(family) * min(values[at] for at in family)) for family in families if place in family)
        for place in places
    ]


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_closed_testing_with_bonferroni(seed):
    values = (np.random.default_rng(seed).random(6) ** 3).tolist()
    assert holm(values) == pytest.approx(_closed_testing(values))


def test_holm_by_hand_with_ties_gaps_and_ones():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02, None, 0.02]) == [pytest.approx(0.04), None, pytest.approx(0.04)]
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([0.3]) == [0.3]
    assert holm([]) == []
    with pytest.raises(SettingsError, match="outside"):
        holm([0.2, 1.2])


def test_stouffer_against_scipy_and_by_signs():
    values = [0.4, 1.9, -0.3]
    found = stouffer([*values, None])
    _, one_sided = combine_pvalues(norm.sf(values), method="stouffer")
    assert found.p == pytest.approx(2 * min(one_sided, 1 - one_sided))
    assert found.used == 3
    assert stouffer([3.0, -3.0]) == (0, 1, 2)
    assert stouffer([1.7]) == (pytest.approx(1.7), pytest.approx(two_sided(1.7)), 1)
    assert stouffer([None]) == (None, None, 0)


def test_two_sided_is_the_normal_tail():
    assert two_sided(-1.959963984540054) == pytest.approx(0.05)
    assert two_sided(0) == 1


def test_a_seed_told_three_times_is_one_seed():
    once = over_dependent([0.04], [0.0004])
    thrice = over_dependent([0.04] * 3, [0.0004] * 3)
    assert thrice[:4] == pytest.approx(once[:4])
    assert once.z == pytest.approx(2)
    assert (once.used, thrice.used) == (1, 3)


def test_dependent_seeds_never_look_surer_than_they_are():
    # The true variance of the mean of correlated seeds is at most the mean variance.
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 4))
    covariance = root @ root.T
    bound = over_dependent([0.0] * 4, np.diag(covariance).tolist()).variance
    assert np.ones(4) @ covariance @ np.ones(4) / 16 < bound


def test_seeds_without_a_variance():
    assert over_dependent([], []) == (None, None, None, None, 0)
    assert over_dependent([0.1, 0.2], [0.01, None]) == (pytest.approx(0.15), None, None, None, 2)
    assert over_dependent([0.0, 0.0], [0.0, 0.0])[2:4] == (0, 1)
    assert over_dependent([0.1, 0.1], [0.0, 0.0])[2:4] == (None, None)
    with pytest.raises(SettingsError, match="one of each"):
        over_dependent([0.1], [])
