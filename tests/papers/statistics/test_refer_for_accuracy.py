"""The share to refer for a target accuracy: by trying every threshold, by hand, and its interval."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.errors import SettingsError, TrainingError
from fedretina_papers.statistics.refer_for_accuracy import at_threshold, refer_for_accuracy
from slow_bootstrap import bootstrapped_slowly

U = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
WRONG = [0, 0, 0, 0, 1, 0, 0, 1, 1, 1]


def slow(u, wrong, target, accuracy):
    best = 1.0
    for threshold in u:
        kept = [bad for value, bad in zip(u, wrong, strict=True) if value <= threshold]
        over = len(kept) if accuracy == "kept" else len(u)
        if sum(kept) <= (1 - target) * over + 1e-12:
            best = min(best, 1 - len(kept) / len(u))
    return best


def test_by_hand():
    assert refer_for_accuracy(U, WRONG, 0.6)[:2] == (0.0, 1.0)
    assert refer_for_accuracy(U, WRONG, 0.85)[:2] == (pytest.approx(0.3), 0.7)
    assert refer_for_accuracy(U, WRONG, 1.0)[:2] == (pytest.approx(0.6), 0.4)
    # One error may stay among ten, the others go to the doctor, who is right.
    assert refer_for_accuracy(U, WRONG, 0.9, "with_doctor")[:2] == (pytest.approx(0.3), 0.7)


@pytest.mark.parametrize("accuracy", ["kept", "with_doctor"])
@pytest.mark.parametrize("seed", range(6))
def test_against_every_threshold(seed, accuracy):
    rng = np.random.default_rng(seed)
    u = rng.random(60).round(1 + seed % 2)
    wrong = rng.random(60) < 0.2 + 0.5 * u
    for target in (0.5, 0.7, 0.8, 0.9, 0.95, 1.0):
        found = refer_for_accuracy(u, wrong, target, accuracy)
        assert found.rate == pytest.approx(slow(u, wrong, target, accuracy))
        if found.threshold is not None:
            told = at_threshold(u, wrong, found.threshold)
            assert told.rate == pytest.approx(found.rate)
            if accuracy == "kept":
                assert told.accuracy >= target - 1e-9


def test_with_a_doctor_fewer_are_referred():
    rng = np.random.default_rng(9)
    u = rng.random(200)
    wrong = rng.random(200) < u
    assert refer_for_accuracy(u, wrong, 0.9, "with_doctor").rate < refer_for_accuracy(u, wrong, 0.9).rate


def test_where_no_rule_reaches_the_target_all_are_referred():
    assert refer_for_accuracy([0.5, 0.5], [0, 1], 0.9) == (1.0, None, None)
    assert refer_for_accuracy([0.1, 0.5], [1, 0], 0.9)[:2] == (1.0, None)
    assert refer_for_accuracy([0.5], [1], 0.9, "with_doctor")[:2] == (1.0, None)
    assert at_threshold([0.5], [1], None) == (1.0, None)


def test_a_share_that_is_a_whole_number_of_cases_is_no_rounding_matter():
    assert refer_for_accuracy(np.arange(10) / 10, [0] * 9 + [1], 0.9).rate == 0.0


def test_the_interval_is_that_of_the_bootstrap_over_patients():
    rng = np.random.default_rng(4)
    u = rng.random(80)
    wrong = rng.random(80) < 0.6 * u
    patients = [f"p{at // 2}" for at in range(80)]
    found = refer_for_accuracy(u, wrong, 0.85, patients=patients, seed=5, draws=200)

    def rate(places):
        return {"rate": slow(u[places], wrong[places], 0.85, "kept")}

    slowly = bootstrapped_slowly(rate, patients, 5, 200)["rate"]
    assert found.interval == (pytest.approx(slowly.low), pytest.approx(slowly.high), 200)
    assert found.interval.low <= found.rate <= found.interval.high


def test_unfit_input():
    for target in (0, 1.1, -1):
        with pytest.raises(SettingsError, match="target"):
            refer_for_accuracy(U, WRONG, target)
    with pytest.raises(TrainingError, match="one patient a case"):
        refer_for_accuracy(U, WRONG, 0.9, patients=["a"])
    with pytest.raises(TrainingError, match="without images"):
        refer_for_accuracy([], [], 0.9)
