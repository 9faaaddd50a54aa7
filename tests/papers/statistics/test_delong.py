"""DeLong's test: the slow form with every pair, clusters, a permutation test, degenerate input."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.errors import TrainingError
from fedretina.evaluation.metrics import auroc
from fedretina_papers.statistics.delong import delong_test


def _answers(seed, n=60, ties=False, gain=0.5):
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < 0.4
    common = rng.normal(size=n) + truth
    first, second = common + gain * truth + 0.7 * rng.normal(size=n), common + 0.7 * rng.normal(size=n)
    return (first.round(), second.round(), truth) if ties else (first, second, truth)


def _pairs(scores, truth):
    """Every positive against every negative [m, n]."""
    ones, zeros = scores[truth][:, None], scores[~truth][None]
    return (ones > zeros) + 0.5 * (ones == zeros)


def _slow_delong(first, second, truth):
    cells = _pairs(first, truth) - _pairs(second, truth)
    rows, columns = cells.mean(1), cells.mean(0)
    return cells.mean(), rows.var(ddof=1) / rows.size + columns.var(ddof=1) / columns.size


def _slow_obuchowski(first, second, truth, patients):
    cells = _pairs(first, truth) - _pairs(second, truth)
    theta, (m, n) = cells.mean(), cells.shape
    ill, well = np.asarray(patients)[truth], np.asarray(patients)[~truth]
    s10 = s01 = s11 = 0.0
    for person in sorted(set(patients)):
        row = sum(cells[i].mean() - theta for i in range(m) if ill[i] == person)
        column = sum(cells[:, j].mean() - theta for j in range(n) if well[j] == person)
        s10, s01, s11 = s10 + row**2, s01 + column**2, s11 + row * column
    people, i10, i01 = len(set(patients)), len(set(ill)), len(set(well))
    return s10 * i10 / (i10 - 1) / m**2 + s01 * i01 / (i01 - 1) / n**2 + 2 * s11 * people / (people - 1) / (m * n)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_form_with_every_pair(seed, ties):
    first, second, truth = _answers(seed, ties=ties)
    found = delong_test(first, second, truth)
    difference, variance = _slow_delong(first, second, truth)
    assert found.difference == pytest.approx(difference, abs=1e-12)
    assert found.variance == pytest.approx(variance, rel=1e-10)
    assert found.z == pytest.approx(difference / variance**0.5)
    assert found[:2] == pytest.approx((auroc(first, truth), auroc(second, truth)))


@pytest.mark.parametrize("seed", range(4))
def test_clusters_equal_obuchowskis_sums_written_out(seed):
    first, second, truth = _answers(seed, n=50, ties=seed % 2 == 1)
    patients = [f"p{number // 2 if number < 30 else number // 3}" for number in range(50)]
    found = delong_test(first, second, truth, patients)
    assert found.variance == pytest.approx(_slow_obuchowski(first, second, truth, patients), rel=1e-10)
    assert found.variance != pytest.approx(delong_test(first, second, truth).variance, rel=1e-3)


def test_a_patient_an_image_is_delongs_own_and_order_does_not_matter():
    first, second, truth = _answers(9)
    plain = delong_test(first, second, truth)
    people = [f"p{number}" for number in range(60)]
    assert delong_test(first, second, truth, people) == pytest.approx(plain)
    turned = np.random.default_rng(1).permutation(60)
    assert delong_test(first[turned], second[turned], truth[turned]) == pytest.approx(plain)
    back = delong_test(second, first, truth)
    assert (back.difference, back.z, back.p) == pytest.approx((-plain.difference, -plain.z, plain.p))


def test_an_image_stored_twice_is_no_second_witness():
    first, second, truth = _answers(3)
    people = [f"p{number}" for number in range(60)]
    twice = [np.repeat(values, 2) for values in (first, second, truth)]
    both = delong_test(*twice, np.repeat(people, 2).tolist())
    assert both.variance == pytest.approx(delong_test(first, second, truth).variance)
    assert delong_test(*twice).variance < 0.6 * both.variance


def test_agrees_with_a_permutation_of_the_two_rows():
    first, second, truth = _answers(12, n=120, gain=0.45)
    found = delong_test(first, second, truth)
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(1500):
        swap = rng.random(120) < 0.5
        gaps.append(auroc(np.where(swap, second, first), truth) - auroc(np.where(swap, first, second), truth))
    share = np.mean(np.abs(gaps) >= abs(found.difference) - 1e-12)
    assert 0.001 < share < 0.3  # neither sure nor hopeless, else the comparison says little
    assert found.p == pytest.approx(share, abs=0.03)


def test_without_a_difference_it_cries_wolf_one_time_in_twenty():
    rng = np.random.default_rng(7)
    alarms = plain = 0
    for _ in range(600):
        # Two eyes a patient, alike in truth and in score; both rows equally good.
        truth = np.repeat(rng.random(60) < 0.5, 2)
        rows = [np.repeat(rng.normal(size=60) + truth[::2], 2) + 0.3 * rng.normal(size=120) for _ in range(2)]
        people = np.repeat(np.arange(60).astype(str), 2).tolist()
        alarms += delong_test(*rows, truth, people).p < 0.05
        plain += delong_test(*rows, truth).p < 0.05
    assert 0.03 < alarms / 600 < 0.08
    assert plain / 600 > 0.12  # eyes counted as patients promise too much


def test_rows_that_rank_alike_do_not_differ():
    first, _, truth = _answers(1)
    found = delong_test(first, np.exp(first), truth)
    assert (found.difference, found.variance, found.z, found.p) == (0, 0, 0, 1)


def test_two_perfect_rows_or_opposite_ones_have_no_p():
    truth = np.array([False] * 5 + [True] * 5)
    rise = np.arange(10.0)
    assert delong_test(rise, rise + 100 * truth, truth).p == 1
    against = delong_test(rise, -rise, truth)
    assert (against.difference, against.z, against.p) == (1, None, None)


def test_one_class_or_one_ill_patient():
    first, second, truth = _answers(2)
    assert delong_test(first, second, np.ones(60, dtype=bool)) is None
    assert delong_test(first, second, np.zeros(60, dtype=bool)) is None
    lone = ["ill" if ill else f"p{at}" for at, ill in enumerate(truth)]
    found = delong_test(first, second, truth, lone)
    assert found.variance is None
    assert found.p is None
    assert found.difference == pytest.approx(_slow_delong(first, second, truth)[0])


def test_refuses_what_does_not_fit():
    first, second, truth = _answers(2)
    with pytest.raises(TrainingError, match="one patient an image"):
        delong_test(first, second, truth, ["a"])
    with pytest.raises(TrainingError, match="finite"):
        delong_test(first, np.where(truth, np.nan, second), truth)
    with pytest.raises(TrainingError, match="shapes"):
        delong_test(first, second[:-1], truth)
