"""Differences over drawn patients: shared draws, seeds that share patients, sites that do not, undefined draws."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.errors import SettingsError, TrainingError
from fedretina_papers.statistics.paired_bootstrap import (
    Difference,
    Sample,
    difference_of,
    draw_together,
    mean_over_seeds,
    mean_over_sites,
)


def _mean(values):
    return lambda counts: {"mean": counts @ values / counts.sum(1)}


def test_both_rows_meet_the_same_patients():
    values = np.random.default_rng(1).normal(size=40)
    patients = [f"p{number // 2}" for number in range(40)]
    one, two = draw_together([Sample(_mean(values + 0.1), patients), Sample(_mean(values), patients)], 3, 200)
    gaps = one["mean"] - two["mean"]
    assert gaps == pytest.approx(np.full(200, 0.1))
    assert np.ptp(one["mean"]) > 0.1


def test_patients_are_drawn_by_name_over_all_sets():
    seen = []

    def looker(counts):
        seen.append(counts.copy())
        return {"n": counts.sum(1).astype(float)}

    draw_together([Sample(looker, ["b", "a", "c", "a"]), Sample(looker, ["c", "d"])], 5, 300)
    drawn = (seen[0] != 1).any(1) & (seen[1] != 1).any(1)  # a draw without a patient of the set shows as all ones
    first, second = (counts[drawn] for counts in seen)
    assert len(first) > 100
    assert (first[:, 1] == first[:, 3]).all()
    assert (first[:, 2] == second[:, 0]).all()
    assert (first[:, :3].sum(1) + second[:, 1] == 4).all()  # as many patients as there are, over both sets


def test_seeds_on_the_same_patients_do_not_add_up_and_others_do():
    rng = np.random.default_rng(2)
    gaps = rng.normal(0.1, 1, 200)
    zero = np.zeros(200)

    def width(names):
        samples = [Sample(_mean(values), people) for people in names for values in (gaps, zero)]
        found = [columns["mean"] for columns in draw_together(samples, 1, 3000)]
        return np.std(mean_over_seeds(found[::2], found[1::2]))

    people, strangers = ([f"{letter}{number}" for number in range(200)] for letter in "pq")
    alone = width([people])
    assert alone == pytest.approx(gaps.std() / 200**0.5, rel=0.05)
    assert width([people, people]) == pytest.approx(alone, rel=0.05)
    assert width([people, strangers]) == pytest.approx(alone / 2**0.5, rel=0.08)


def test_a_seed_without_the_rare_grade_is_stood_in_for():
    nan = np.nan
    one = [np.array([0.3, nan, nan]), np.array([0.5, 0.5, nan])]
    two = [np.array([0.1, 0.1, 0.1]), np.array([0.1, 0.1, 0.1])]
    assert mean_over_seeds(one, two) == pytest.approx([0.3, 0.4, nan], nan_ok=True)


def test_a_draw_without_a_patient_of_the_set_is_undefined_there():
    def rule(counts):
        assert (counts.sum(1) > 0).all()
        return _mean(np.array([1.0]))(counts)

    lone, many = Sample(rule, ["only"]), Sample(_mean(np.zeros(3)), ["a", "b", "c"])
    found = draw_together([lone, many], 1, 400)
    missing = np.mean(np.isnan(found[0]["mean"]))
    assert missing == pytest.approx(0.75**4, abs=0.06)
    assert set(found[0]["mean"][np.isfinite(found[0]["mean"])]) == {1.0}


def test_the_mean_over_sites_varies_as_independent_sites_do():
    rng = np.random.default_rng(4)
    sites = [rng.normal(0, 1, 4000), rng.normal(0, 2, 4000)]
    sites[0][rng.random(4000) < 0.05] = np.nan
    found = mean_over_sites(sites)
    assert found.size == np.isfinite(sites[0]).sum()
    assert np.std(found) == pytest.approx(5**0.5 / 2, rel=0.05)
    assert mean_over_sites([]) is None
    assert mean_over_sites([np.zeros(10), np.array([np.nan] * 2 + [1.0] * 8)]) is None


def test_the_p_value_and_the_interval_answer_the_same_question():
    for shift in (0.0, 0.1, 0.19, 0.2, 0.3):
        draws = np.random.default_rng(5).normal(shift, 0.1, 2000)
        found = difference_of(draws)
        assert (found.p < 0.05) == (found.low > 0)
        assert found.variance == pytest.approx(0.01, rel=0.1)
    assert difference_of(np.linspace(1, 2, 999)).p == pytest.approx(2 / 1000)
    assert difference_of(np.linspace(-1, 1, 1001)).p == 1


def test_rows_that_answer_alike_and_what_cannot_be_told():
    assert difference_of(np.zeros(100)) == Difference(None, None, 1.0, 100, 0.0)
    assert difference_of(np.full(100, 0.2)) == Difference(None, None, None, 100, None)
    assert difference_of(np.array([np.nan] * 20 + [0.1, 0.2] * 40)) == Difference(None, None, None, 80, None)
    assert difference_of(np.zeros(100), alone=True).p is None


def test_refuses_no_images_and_no_draws():
    with pytest.raises(TrainingError, match="without images"):
        draw_together([Sample(_mean(np.zeros(0)), [])], 1)
    with pytest.raises(SettingsError, match="draws"):
        draw_together([Sample(_mean(np.zeros(1)), ["a"])], 1, draws=0)
