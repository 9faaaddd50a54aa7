"""Error detection against scikit-learn, a loop over coverages and all orders of a tie."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedretina.errors import TrainingError
from fedretina.evaluation.metrics import aurc, error_detection_auroc


def slow_aurc(wrong_in_order: list[int]) -> float:
    return float(np.mean([np.mean(wrong_in_order[:n]) for n in range(1, len(wrong_in_order) + 1)]))


@pytest.mark.parametrize("seed", range(5))
def test_without_ties_against_loop_and_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    u = rng.permutation(50) / 50
    wrong = rng.uniform(0, 1, 50) < u
    assert aurc(u, wrong) == pytest.approx(slow_aurc(wrong[u.argsort()].astype(int).tolist()))
    assert error_detection_auroc(u, wrong) == pytest.approx(roc_auc_score(wrong, u))


def test_a_tie_is_the_mean_over_all_its_orders():
    u = np.array([0.1, 0.5, 0.5, 0.5, 0.9])
    wrong = np.array([0, 1, 0, 0, 1])
    orders = [slow_aurc([0, *middle, 1]) for middle in itertools.permutations([1, 0, 0])]
    assert aurc(u, wrong) == pytest.approx(np.mean(orders))
    for order in itertools.permutations(range(5)):
        assert aurc(u[list(order)], wrong[list(order)]) == aurc(u, wrong)


def test_aurc_ends():
    assert aurc([0.1, 0.2, 0.3], [0, 0, 0]) == 0.0
    assert aurc([0.1, 0.2, 0.3], [1, 1, 1]) == 1.0
    assert aurc([0.5, 0.5, 0.5, 0.5], [1, 0, 0, 0]) == pytest.approx(0.25)
    assert aurc([0.1, 0.2], [0, 1]) == 0.25
    assert aurc([0.2, 0.1], [0, 1]) == 0.75


def test_auroc_ends_and_undefined():
    assert error_detection_auroc([0.1, 0.2, 0.8], [0, 0, 1]) == 1.0
    assert error_detection_auroc([0.5, 0.5, 0.5], [0, 0, 1]) == 0.5
    assert error_detection_auroc([0.1, 0.2], [0, 0]) is None
    assert error_detection_auroc([0.1, 0.2], [1, 1]) is None


@pytest.mark.parametrize("metric", [aurc, error_detection_auroc])
@pytest.mark.parametrize(
    ("u", "wrong", "sentence"),
    [
        ([], [], "without images"),
        ([0.1], [0, 1], "one uncertainty and one verdict"),
        ([0.1, math.nan], [0, 1], "not finite"),
        ([0.1, 0.2], [0, 2], "0 .right. or 1 .wrong."),
    ],
)
def test_unfit_input_is_refused(metric, u, wrong, sentence):
    with pytest.raises(TrainingError, match=sentence):
        metric(u, wrong)
