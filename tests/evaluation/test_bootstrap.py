"""The bootstrap: clusters, closed cases, undefined draws."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.errors import SettingsError, TrainingError
from fedretina.evaluation.bootstrap import Interval, patient_bootstrap
from slow_bootstrap import bootstrapped_slowly


def test_both_ways_draw_the_same_patients():
    values = np.random.default_rng(5).normal(size=30)
    patients = [f"p{number // 3}" for number in range(30)]
    slow = bootstrapped_slowly(lambda chosen: {"mean": float(values[chosen].mean())}, patients, 7, draws=200)
    fast = patient_bootstrap(lambda counts: {"mean": counts @ values / counts.sum(1)}, patients, 7, draws=200)
    assert slow["mean"] == pytest.approx(fast["mean"])
    assert slow["mean"] != patient_bootstrap(lambda c: {"mean": c @ values / c.sum(1)}, patients, 8, 200)["mean"]


def test_a_draw_takes_whole_patients():
    patients = ["a", "b", "a", "c", "b", "a"]

    def whole(counts):
        assert (counts[:, 0] == counts[:, 2]).all()
        assert (counts[:, 0] == counts[:, 5]).all()
        assert (counts[:, 1] == counts[:, 4]).all()
        assert (counts[:, 0] + counts[:, 1] + counts[:, 3] == 3).all()
        sizes.update(counts.sum(1).tolist())
        return {}

    sizes: set[int] = set()
    patient_bootstrap(whole, patients, 1, draws=500)
    assert sizes == {3, 4, 5, 6, 7, 8, 9}


def test_clusters_widen_the_interval_as_theory_says():
    # 60 patients with 4 equal images each carry the information of 60 images, not of 240.
    per_patient = np.random.default_rng(11).normal(size=60)
    values = np.repeat(per_patient, 4)
    patients = [f"p{number // 4}" for number in range(240)]
    rule = lambda counts: {"mean": counts @ values / counts.sum(1)}  # noqa: E731
    clustered = patient_bootstrap(rule, patients, 1, draws=4000)["mean"]
    single = patient_bootstrap(rule, [str(number) for number in range(240)], 1, draws=4000)["mean"]
    error = per_patient.std() / np.sqrt(60)
    assert clustered.high - clustered.low == pytest.approx(2 * 1.96 * error, rel=0.08)
    assert single.high - single.low == pytest.approx(2 * 1.96 * error / 2, rel=0.08)


def test_the_level_sets_the_percentiles():
    column = np.arange(1000) / 999

    def ramp(counts):
        assert counts.shape == (1000, 3)
        return {"ramp": column}

    found = patient_bootstrap(ramp, ["a", "b", "c"], 1)["ramp"]
    assert found == (pytest.approx(0.025), pytest.approx(0.975), 1000)
    assert patient_bootstrap(ramp, ["a", "b", "c"], 1, level=0.5)["ramp"][:2] == pytest.approx((0.25, 0.75))


def test_too_many_undefined_draws_give_no_interval_and_are_counted():
    def rule(share):
        def statistics(chosen):
            seen.append(len(chosen))
            return {"x": float(len(seen)) if len(seen) > share * 200 else None}

        return statistics

    seen: list[int] = []
    assert bootstrapped_slowly(rule(0.2), ["a", "b"], 1, draws=200)["x"] == Interval(None, None, 160)
    seen.clear()
    few = bootstrapped_slowly(rule(0.05), ["a", "b"], 1, draws=200)["x"]
    assert few.draws_used == 190
    assert few.low == pytest.approx(11 + 0.025 * 189)


def test_one_patient_and_draws_that_agree_give_no_interval():
    values = np.array([0.1, 0.9])
    one = bootstrapped_slowly(lambda chosen: {"m": float(values[chosen].mean())}, ["a", "a"], 1, draws=50)
    assert one["m"] == Interval(None, None, 50)
    agreed = bootstrapped_slowly(lambda chosen: {"accuracy": 1.0}, ["a", "b", "c"], 1, draws=50)
    assert agreed["accuracy"] == Interval(None, None, 50)


def test_a_name_that_only_some_draws_give_is_undefined_in_the_others():
    def sometimes(counts):
        chunks.append(len(counts))
        return {"always": np.ones(len(counts)), **({"late": np.zeros(len(counts))} if len(chunks) == 2 else {})}

    chunks: list[int] = []
    found = patient_bootstrap(sometimes, [f"p{n}" for n in range(400_000)], 1, draws=6)
    assert chunks == [2, 2, 2]
    assert found["late"].draws_used == 2
    assert found["always"].draws_used == 6


def test_unfit_input_is_refused():
    with pytest.raises(TrainingError, match="without images"):
        bootstrapped_slowly(lambda chosen: {}, [], 1)
    for words in ({"draws": 0}, {"level": 1.0}, {"level": 0.0}):
        with pytest.raises(SettingsError, match="1 draw or more"):
            bootstrapped_slowly(lambda chosen: {}, ["a"], 1, **words)
