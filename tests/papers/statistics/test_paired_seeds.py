"""The paired test over seeds against SciPy's, and the number of seeds against simulated ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import nct, ttest_1samp, ttest_rel
from scipy.stats import t as student

from fedretina.errors import SettingsError
from fedretina_papers.statistics.paired_seeds import MOST_SEEDS, seed_test, seeds_needed


def test_it_is_the_paired_t_test():
    rng = np.random.default_rng(4)
    one, two = rng.normal(0.8, 0.05, 5), rng.normal(0.78, 0.05, 5)
    found, theirs = seed_test((one - two).tolist()), ttest_rel(one, two)
    interval = theirs.confidence_interval(0.95)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert seed_test((two - one).tolist()).p == pytest.approx(found.p)
    assert seed_test([0.1, 0.3], level=0.5).low == pytest.approx(
        ttest_1samp([0.1, 0.3], 0).confidence_interval(0.5).low
    )


def test_patients_and_seeds_together_by_welchs_formula():
    gaps = [0.01, 0.03, 0.02, 0.05]
    own, patients = np.var(gaps, ddof=1) / 4, 4e-4
    found = seed_test(gaps, patients)
    freedom = 3 * (own + patients) ** 2 / own**2
    error = np.sqrt(own + patients)
    assert found.p == pytest.approx(2 * student.sf(np.mean(gaps) / error, freedom))
    assert found.high - found.low == pytest.approx(2 * student.ppf(0.975, freedom) * error)
    assert seed_test(gaps, 1e-14).p == pytest.approx(seed_test(gaps).p)


def test_a_further_chance_never_makes_it_surer():
    gaps = [0.02, 0.03, 0.05]
    alone, little = seed_test(gaps), seed_test(gaps, 1e-6)
    assert little == alone  # by Welch's degrees of freedom alone it would be narrower
    assert seed_test(gaps, 1e-3).p > alone.p


def test_many_patients_with_seeds_that_agree_are_a_z_test():
    found = seed_test([0.02, 0.02, 0.02], 1e-4)
    assert found.p == pytest.approx(0.0455, abs=1e-4)
    assert found.low == pytest.approx(0.02 - 1.96 * 0.01, abs=1e-5)


def test_together_it_keeps_its_level_where_the_plain_test_does_not():
    # Trainings on one test set: what the patients do to the difference is common to all seeds.
    rng = np.random.default_rng(6)
    gaps = 0.01 * rng.normal(size=(1500, 1)) + 0.01 * rng.normal(size=(1500, 4))
    plain = np.mean([seed_test(row.tolist()).p < 0.05 for row in gaps])
    together = np.mean([seed_test(row.tolist(), 0.01**2).p < 0.05 for row in gaps])
    assert plain > 0.2
    assert 0.03 < together < 0.07


def test_too_few_seeds_and_no_spread():
    assert seed_test([]) == (0, None, None, None, None, None)
    assert seed_test([0.2]) == (1, 0.2, None, None, None, None)
    assert seed_test([0.2, 0.2]) == (2, 0.2, 0, None, None, None)
    assert seed_test([0.0, 0.0, 0.0])[:3] == (3, 0, 0)
    with pytest.raises(SettingsError, match="level"):
        seed_test([0.1, 0.2], level=1)
    with pytest.raises(SettingsError, match="variance"):
        seed_test([0.1, 0.2], -1.0)


@pytest.mark.parametrize(("sd", "difference"), [(0.01, 0.01), (0.02, 0.01), (0.05, 0.02), (0.004, 0.02), (0.03, -0.01)])
def test_seeds_needed_is_the_first_with_the_power(sd, difference):
    def power(n):
        bound = student.ppf(0.975, n - 1)
        return nct.sf(bound, n - 1, abs(difference) / sd * n**0.5)

    needed = seeds_needed(sd, difference)
    assert power(needed) >= 0.8
    assert needed == 2 or power(needed - 1) < 0.8


def test_seeds_needed_keeps_its_promise():
    needed = seeds_needed(0.02, 0.015)
    draws = np.random.default_rng(2).normal(0.015, 0.02, (4000, needed))
    assert np.mean(ttest_1samp(draws, 0, axis=1).pvalue < 0.05) == pytest.approx(0.82, abs=0.03)


def test_seeds_needed_at_its_ends():
    assert seeds_needed(0.0, 0.01) == 2
    assert seeds_needed(1e-9, 1.0) == 2
    assert seeds_needed(0.01, 0.0) is None
    assert seeds_needed(1.0, 0.001) is None
    assert MOST_SEEDS >= seeds_needed(0.03, 0.003) > seeds_needed(0.03, 0.01)
    assert seeds_needed(0.02, 0.01, 0.002**2) > seeds_needed(0.02, 0.01)
    assert seeds_needed(0.02, 0.01, 0.005**2) is None  # no number of seeds makes up for patients
    assert seeds_needed(0.0, 0.03, 0.01**2) == 2
    with pytest.raises(SettingsError, match="spread"):
        seeds_needed(float("nan"), 0.01)
