"""Referable disease against scikit-learn and hand counts; schemes that do not say, and images nobody can grade."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import recall_score, roc_auc_score

from fedretina.evaluation.referable import referable, referral_task
from fedretina.settings.scheme import GradingScheme, preset


def answers(seed: int, classes: int, count: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    return rng.dirichlet(np.ones(classes), count) * 0.7 + 0.3 * np.eye(classes)[labels], labels


@pytest.mark.parametrize("name", ["icdr5", "normal_3stages"])
def test_figures_equal_scikit_learn(name):
    scheme = preset(name)
    probabilities, labels = answers(3, scheme.num_classes)
    found = referable(probabilities, labels, scheme)
    diseased, score = labels >= 2, probabilities[:, 2:].sum(1)
    referred = probabilities.argmax(1) >= 2
    assert found.auc == pytest.approx(roc_auc_score(diseased, score))
    assert found.sensitivity == pytest.approx(recall_score(diseased, referred))
    assert found.specificity == pytest.approx(recall_score(~diseased, ~referred))
    assert (found.left_out, found.called_ungradable) == (0, 0)
    assert found.found + found.missed + found.alarms + found.cleared == 80


def test_an_eye_nobody_could_grade_is_left_out_and_one_called_ungradable_is_referred():
    scheme = GradingScheme(grades=("none", "some", "bad"), ungradable="bad", referable=("some",))
    probabilities = np.array(
        [
            [0.7, 0.2, 0.1],  # healthy, cleared
            [0.1, 0.2, 0.7],  # healthy, called ungradable: referred
            [0.2, 0.2, 0.6],  # diseased, called ungradable: referred
            [0.6, 0.3, 0.1],  # diseased, missed
            [0.1, 0.8, 0.1],  # diseased, found
            [0.1, 0.1, 0.8],  # nobody could grade it
        ]
    )
    found = referable(probabilities, np.array([0, 0, 1, 1, 1, 2]), scheme)
    assert (found.found, found.missed, found.alarms, found.cleared) == (2, 1, 1, 1)
    assert (found.left_out, found.called_ungradable) == (1, 2)
    assert found.sensitivity == pytest.approx(2 / 3)
    assert found.specificity == 0.5
    # Scores among the gradable grades: 2/9 and 2/3 against 1/2, 1/3, 8/9.
    assert found.auc == pytest.approx((1 + 0 + 1 + 0 + 1 + 1) / 6)


def test_all_probability_on_ungradable_says_nothing_of_disease():
    scheme = GradingScheme(grades=("none", "some", "bad"), ungradable="bad", referable=("some",))
    task = referral_task(np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]), np.array([0, 0]), scheme)
    assert task.score.tolist() == [0.5, 0.0]
    assert task.referred.tolist() == [True, False]


def test_a_scheme_that_names_no_referable_grade_has_no_figures():
    scheme = GradingScheme(grades=("a", "b"))
    assert referable(*answers(1, 2), scheme) is None
    assert referral_task(*answers(1, 2), scheme) is None


def test_figures_without_their_kind_of_eye_are_none():
    probabilities = np.eye(5)
    healthy = referable(probabilities, np.zeros(5, int), preset("icdr5"))
    assert (healthy.auc, healthy.sensitivity, healthy.specificity) == (None, None, pytest.approx(0.4))
    diseased = referable(probabilities, np.full(5, 4), preset("icdr5"))
    assert (diseased.auc, diseased.sensitivity, diseased.specificity) == (None, pytest.approx(0.6), None)
    nobody = referable(np.full((1, 6), 1 / 6), np.array([5]), preset("icdr5_ungradable"))
    assert nobody == (None, None, None, 0, 0, 0, 0, 1, 0)
