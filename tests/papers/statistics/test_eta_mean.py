"""Means over sites: both ends, Eq. 12 term by term, and sites without the figure."""

from __future__ import annotations

import math

import pytest

from fedretina.errors import SettingsError
from fedretina_papers.statistics.site_mean import BY_SIZE, PLAIN, OverSites, site_mean, worst_site

VALUES = {"large": 0.9, "middle": 0.7, "small": 0.2}
SIZES = {"large": 900, "middle": 90, "small": 10}


def test_the_ends_are_the_plain_mean_and_the_one_by_size():
    assert site_mean(VALUES, SIZES, PLAIN).value == pytest.approx(0.6)
    assert site_mean(VALUES, SIZES, BY_SIZE).value == pytest.approx((810 + 63 + 2) / 1000)


@pytest.mark.parametrize("eta", [1.0, 1.3, 2.0, math.e])
def test_equation_12_as_printed(eta):
    terms = {site: eta ** math.log(size) for site, size in SIZES.items()}
    slow = sum(terms[site] / sum(terms.values()) * value for site, value in VALUES.items())
    assert site_mean(VALUES, SIZES, eta) == (pytest.approx(slow), 3, 0)


def test_between_the_ends_it_rises_with_the_weight_of_the_better_large_site():
    found = [site_mean(VALUES, SIZES, eta).value for eta in (1.0, 1.5, 2.0, 2.5, math.e)]
    assert found == sorted(found)


def test_a_site_without_the_figure_is_left_out_and_counted():
    assert site_mean({**VALUES, "large": None}, SIZES) == (pytest.approx(0.45), 2, 1)
    assert site_mean({"large": None}, SIZES) == OverSites(None, 0, 1)
    assert site_mean({}, {}) == OverSites(None, 0, 0)


@pytest.mark.parametrize(
    ("eta", "sizes"), [(0.9, SIZES), (3, SIZES), (math.nan, SIZES), (1, {}), (1, {**SIZES, "small": 0})]
)
def test_unfit_input(eta, sizes):
    with pytest.raises(SettingsError):
        site_mean(VALUES, sizes, eta)


def test_the_worst_site():
    assert worst_site(VALUES) == ("small", 0.2)
    assert worst_site(VALUES, higher=False) == ("large", 0.9)
    assert worst_site({"b": 0.5, "a": 0.5, "c": None}) == ("a", 0.5)
    assert worst_site({"a": None}) is None
