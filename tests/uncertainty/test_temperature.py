"""The temperature against a grid, the softmax of divided logits, closed cases and every degenerate input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedretina.errors import SettingsError, TrainingError
from fedretina.evaluation.metrics import nll
from fedretina.uncertainty.temperature import BOUNDS, fit_temperature, tempered


def case(seed=0, images=200, grades=5, sureness=3.0):
    """Labels drawn from softmax(z), answers that say softmax(sureness x z): the true T is `sureness`."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1.5, (images, grades))
    truth = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    labels = np.array([rng.choice(grades, p=row) for row in truth])
    return torch.tensor(sureness * z), labels


@pytest.mark.parametrize("sureness", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_best_of_a_fine_grid_over_divided_logits(seed, sureness):
    logits, labels = case(seed, sureness=sureness)
    found = fit_temperature(logits.softmax(1).numpy(), labels)
    grid = np.exp(np.linspace(*np.log(BOUNDS), 4001))
    losses = [torch.nn.functional.cross_entropy(logits / t, torch.tensor(labels)).item() for t in grid]
    assert found.reason == "fitted"
    assert found.value == pytest.approx(grid[int(np.argmin(losses))], rel=2e-3)
    assert found.nll_after == pytest.approx(min(losses), abs=1e-6)
    assert found.nll_after <= min(losses) + 1e-9
    assert found.nll_before == pytest.approx(torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).item())
    assert found.images == 200


def test_many_images_give_back_the_temperature_that_was_drawn():
    logits, labels = case(images=20_000)
    assert fit_temperature(logits.softmax(1).numpy(), labels).value == pytest.approx(3.0, rel=0.05)


def test_a_share_that_is_right_at_one_confidence_in_closed_form():
    # 40 images, two grades, always 0.9 for the first, right in 30: the best answer says 0.75.
    probabilities = np.tile([0.9, 0.1], (40, 1))
    labels = np.array([0] * 30 + [1] * 10)
    found = fit_temperature(probabilities, labels)
    assert found.value == pytest.approx(math.log(9) / math.log(3), rel=1e-4)
    assert tempered(probabilities, found.value)[0] == pytest.approx([0.75, 0.25], abs=1e-5)


def test_tempered_is_the_softmax_of_divided_logits_and_keeps_the_order():
    logits, _ = case()
    probabilities = logits.softmax(1).numpy()
    for t in (0.2, 0.7, 2.5, 15.0):
        there = tempered(probabilities, t)
        assert there == pytest.approx((logits / t).softmax(1).numpy(), abs=1e-12)
        assert (there.argmax(1) == probabilities.argmax(1)).all()
        assert there.sum(1) == pytest.approx(1)


def test_at_1_the_very_same_numbers_come_back():
    probabilities = case()[0].softmax(1).numpy()
    there = tempered(probabilities, 1.0)
    assert (there == probabilities).all()
    there[0] = 0
    assert probabilities[0].sum() == pytest.approx(1)


def test_a_probability_of_0_is_no_infinite_loss():
    probabilities = np.tile([1.0, 0.0], (40, 1))
    labels = np.array([0] * 30 + [1] * 10)
    found = fit_temperature(probabilities, labels)
    assert math.isfinite(found.nll_before)
    assert found.nll_before == pytest.approx(nll(probabilities, labels))
    assert found.reason == "at_bound"
    assert (found.value, found.nll_after) == (1.0, found.nll_before)


def spread(right, wrong, sure=0.8):
    """`right` images of each of two grades answered rightly, `wrong` wrongly."""
    labels = np.array([0, 1] * right + [0, 1] * wrong)
    answered = np.concatenate([labels[: 2 * right], 1 - labels[2 * right :]])
    probabilities = np.full((labels.size, 2), 1 - sure)
    probabilities[np.arange(labels.size), answered] = sure
    return probabilities, labels


DEGENERATE = {
    "too_few_images": spread(6, 3),
    "one_class": (np.tile([0.4, 0.6], (30, 1)), np.zeros(30, dtype=int)),
    "no_errors": spread(15, 0),
    "too_few_errors": spread(20, 2),
    "uninformative": spread(10, 20),
}


@pytest.mark.parametrize("reason", DEGENERATE)
def test_where_the_data_cannot_bear_a_temperature_it_stays_1(reason):
    found = fit_temperature(*DEGENERATE[reason])
    assert (found.value, found.reason) == (1.0, reason)
    assert found.nll_after == found.nll_before == pytest.approx(nll(*DEGENERATE[reason]))


def test_five_errors_are_enough():
    probabilities, labels = spread(20, 2)
    one_more = fit_temperature(np.vstack([probabilities, [[0.8, 0.2]]]), np.append(labels, 1))
    assert one_more.reason == "fitted"


def test_a_model_that_is_right_as_often_as_it_says_keeps_nearly_1():
    found = fit_temperature(*spread(40, 10))
    assert found.value == pytest.approx(1, abs=1e-4)
    assert found.nll_after <= found.nll_before


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.1, 0.5])
def test_rows_that_are_no_probabilities_are_refused(bad):
    probabilities, labels = spread(20, 10)
    probabilities[3, 1] = bad
    with pytest.raises(TrainingError):
        fit_temperature(probabilities, labels)
    with pytest.raises(TrainingError, match="sum to 1"):
        tempered(probabilities, 2.0)


def test_no_images_and_foreign_labels_are_refused():
    with pytest.raises(TrainingError, match="without images"):
        fit_temperature(np.empty((0, 3)), np.empty(0, dtype=int))
    with pytest.raises(TrainingError, match="not a class"):
        fit_temperature(np.full((30, 2), 0.5), np.full(30, 2))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_is_none_is_refused(value):
    with pytest.raises(SettingsError, match="above 0"):
        tempered(np.full((1, 2), 0.5), value)
