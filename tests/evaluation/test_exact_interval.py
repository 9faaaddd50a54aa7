"""The exact interval against the quantiles of the beta distribution, its promise of coverage, and its ends."""

from __future__ import annotations

import math

import pytest
from scipy.stats import beta

from fedretina.errors import SettingsError
from fedretina.evaluation.bootstrap import exact_interval


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 31), (2, 31), (31, 31), (34, 120), (999, 5000)])
def test_its_ends_are_quantiles_of_the_beta_distribution(k, n):
    share = exact_interval(k, n)
    low = beta.ppf(0.025, k, n - k + 1) if k else 0
    high = beta.ppf(0.975, k + 1, n - k) if k < n else 1
    assert (share.k, share.n, share.value) == (k, n, k / n)
    assert (share.low, share.high) == pytest.approx((low, high), abs=1e-11)
    assert 0 <= share.low <= share.value <= share.high <= 1


@pytest.mark.parametrize("n", [1, 5, 17])
@pytest.mark.parametrize("true", [0.01, 0.1, 0.37, 0.5, 0.8, 0.99])
def test_it_covers_the_true_share_as_often_as_it_says(n, true):
    shares = [exact_interval(k, n) for k in range(n + 1)]
    chance = [math.comb(n, k) * true**k * (1 - true) ** (n - k) for k in range(n + 1)]
    assert sum(p for p, share in zip(chance, shares, strict=True) if share.low <= true <= share.high) >= 0.95


def test_none_of_n_has_an_upper_bound_in_closed_form():
    assert exact_interval(0, 20).high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert exact_interval(0, 20).low == 0


def test_nobody_has_no_share():
    assert exact_interval(0, 0) is None


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3)])
def test_unfit_counts_are_refused(k, n):
    with pytest.raises(SettingsError, match="give 0 <= k <= n"):
        exact_interval(k, n)
