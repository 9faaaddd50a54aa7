"""Macro AUC and kappa against scikit-learn, slow forms and degenerate splits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, roc_auc_score

from fedretina.errors import TrainingError
from fedretina.evaluation.metrics import MacroAuc, accuracy, auroc, macro_auc, plain_kappa, quadratic_kappa


def random_split(seed: int, classes: int = 5, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, count - classes)])
    scores = np.round(rng.uniform(0, 1, (count, classes)) + 0.3 * np.eye(classes)[labels], 1)  # with ties
    return scores, labels


@pytest.mark.parametrize("seed", range(10))
def test_auroc_equals_scikit_learn_and_counting_pairs(seed):
    rng = np.random.default_rng(seed)
    scores, positive = np.round(rng.uniform(0, 1, 40), 1), rng.uniform(0, 1, 40) < 0.4
    above = scores[positive][:, None] - scores[~positive][None]
    pairs = ((above > 0) + 0.5 * (above == 0)).mean()
    assert auroc(scores, positive) == pytest.approx(pairs, abs=1e-14)
    assert auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-14)


def test_equal_aurocs_are_equal_to_the_bit():
    rng = np.random.default_rng(0)
    positive = np.arange(20) < 6
    splits = [rng.permutation(20) for _ in range(500)]
    pairs = [int(np.sum(ranks[positive][:, None] > ranks[~positive])) for ranks in splits]
    assert len({(won, auroc(ranks, positive)) for won, ranks in zip(pairs, splits, strict=True)}) == len(set(pairs))


@pytest.mark.parametrize("positive", [[True, True], [False, False]])
def test_auroc_of_one_kind_is_undefined(positive):
    assert auroc(np.array([0.1, 0.9]), np.array(positive)) is None


@pytest.mark.parametrize("classes", [2, 4, 5, 6])
def test_macro_auc_equals_scikit_learn_on_onehot_labels(classes):
    scores, labels = random_split(classes, classes)
    expected = roc_auc_score(np.eye(classes)[labels], scores, average="macro")
    assert macro_auc(scores, labels) == MacroAuc(pytest.approx(expected, abs=1e-14), classes)


def test_macro_auc_leaves_out_a_class_that_is_absent_and_says_so():
    scores, labels = random_split(1)
    labels[labels == 3] = 1
    kept = [roc_auc_score(labels == k, scores[:, k]) for k in (0, 1, 2, 4)]
    assert macro_auc(scores, labels) == MacroAuc(pytest.approx(np.mean(kept)), 4)


def test_macro_auc_of_a_single_class_is_undefined():
    assert macro_auc(np.eye(5), np.full(5, 2)) == MacroAuc(None, 1)


def test_macro_auc_ends():
    labels = np.array([0, 1, 2, 0, 1, 2])
    assert macro_auc(np.eye(3)[labels], labels).value == 1.0
    assert macro_auc(-np.eye(3)[labels], labels).value == 0.0
    assert macro_auc(np.ones((6, 3)), labels).value == 0.5


@pytest.mark.parametrize("seed", range(6))
def test_kappa_is_scikit_learns_where_a_class_is_absent(seed):
    scores, labels = random_split(seed)
    predicted = scores.argmax(1)
    labels, predicted = (np.where(side == 2, 4, side) for side in (labels, predicted))
    expected = cohen_kappa_score(labels, predicted, labels=range(5), weights="quadratic")
    assert quadratic_kappa(predicted, labels) == pytest.approx(expected, abs=1e-12)
    assert plain_kappa(predicted, labels) == pytest.approx(cohen_kappa_score(labels, predicted), abs=1e-12)


def test_kappa_ends():
    labels = np.array([0, 1, 2, 3, 4])
    assert quadratic_kappa(labels, labels) == 1.0
    assert quadratic_kappa(labels[::-1], labels) == pytest.approx(-1.0)
    assert quadratic_kappa(np.full(5, 2), labels) == pytest.approx(0.0)
    assert quadratic_kappa(np.full(5, 2), np.full(5, 2)) is None
    assert quadratic_kappa(np.array([0]), np.array([3])) == 0.0
    assert plain_kappa(np.full(5, 2), np.full(5, 2)) is None
    assert (plain_kappa(np.array([0]), np.array([3])), plain_kappa(labels, labels)) == (0.0, 1.0)


def test_kappa_weighs_a_far_mistake_more():
    labels = np.array([0, 0, 1, 2, 3, 4])
    near, far = labels.copy(), labels.copy()
    near[0], far[0] = 1, 4
    assert quadratic_kappa(near, labels) > quadratic_kappa(far, labels)


@pytest.mark.parametrize(
    ("scores", "labels", "sentence"),
    [
        (np.ones((3, 5)), np.zeros(2, int), "labels"),
        (np.ones((3, 1)), np.zeros(3, int), "K of 2 or more"),
        (np.ones((0, 5)), np.zeros(0, int), "without images"),
        (np.full((2, 5), math.nan), np.zeros(2, int), "not finite"),
        (np.ones((2, 5)), np.array([0, 5]), "not a class"),
        (np.ones((2, 5)), np.array([-1, 0]), "not a class"),
        (np.ones((2, 5)), np.array([0.0, 1.5]), "not a class"),
    ],
)
def test_unfit_input_is_refused(scores, labels, sentence):
    with pytest.raises(TrainingError, match=sentence):
        macro_auc(scores, labels)


@pytest.mark.parametrize("metric", [accuracy, quadratic_kappa, plain_kappa])
@pytest.mark.parametrize(("predicted", "labels"), [([], []), ([1, 2], [1]), ([[1]], [[1]])])
def test_unfit_pairs_are_refused(metric, predicted, labels):
    with pytest.raises(TrainingError, match="one prediction and one label"):
        metric(predicted, labels)
