"""Figures of classes against hand counts and scikit-learn, and the ends where they are undefined."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from fedretina.errors import TrainingError
from fedretina_papers.statistics.classification import classification


def answers(predicted, classes=3, sure=0.8):
    rest = (1 - sure) / (classes - 1)
    return np.where(np.eye(classes)[list(predicted)] == 1, sure, rest)


@pytest.fixture
def split() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    labels = rng.choice(4, 300, p=[0.5, 0.3, 0.15, 0.05])
    return 0.6 * rng.dirichlet(np.full(4, 0.5), 300) + 0.4 * np.eye(4)[rng.permuted(labels)], labels


def test_all_figures_by_counting_where_all_classes_are_present_and_answered(split):
    probabilities, labels = split
    found, predicted = classification(*split), probabilities.argmax(1)
    assert set(predicted) == set(labels) == {0, 1, 2, 3}
    counts = [[int(np.sum((labels == k) & (predicted == j))) for j in range(4)] for k in range(4)]
    assert found.confusion.tolist() == counts  # true class by row
    right, support, answers = np.diag(counts), np.sum(counts, axis=1), np.sum(counts, axis=0)
    precision, recall, f1 = right / answers, right / support, 2 * right / (support + answers)
    assert [one.precision for one in found.classes] == pytest.approx(precision)
    assert [one.recall for one in found.classes] == pytest.approx(recall)
    assert [one.f1 for one in found.classes] == pytest.approx(f1)
    assert [(one.support, one.answers) for one in found.classes] == list(zip(support, answers, strict=True))
    assert found.accuracy == pytest.approx(np.mean(labels == predicted))
    assert (found.precision, found.recall, found.f1) == pytest.approx((precision.mean(), recall.mean(), f1.mean()))
    assert found.auc == pytest.approx(metrics.roc_auc_score(np.eye(4)[labels], probabilities))
    for k, one in enumerate(found.classes):
        assert one.auc == pytest.approx(metrics.roc_auc_score(labels == k, probabilities[:, k]))
    assert (found.present, found.n) == (4, 300)


def test_a_class_present_and_never_answered_has_no_precision_and_counts_as_zero():
    labels, predicted = [0, 0, 1, 2], [0, 0, 1, 1]
    found = classification(answers(predicted), labels)
    missed = found.classes[2]
    assert (missed.precision, missed.recall, missed.f1, missed.support, missed.answers) == (None, 0.0, 0.0, 1, 0)
    assert found.precision == pytest.approx((1 + 0.5 + 0) / 3)
    assert found.precision == pytest.approx(
        metrics.precision_score(labels, predicted, average="macro", zero_division=0)
    )
    assert found.f1 == pytest.approx(metrics.f1_score(labels, predicted, average="macro", zero_division=0))


def test_an_absent_class_is_in_no_mean_even_where_it_was_answered():
    labels, predicted = [0, 0, 1, 1], [0, 2, 1, 1]
    found = classification(answers(predicted), labels)
    stray = found.classes[2]
    assert (stray.precision, stray.recall, stray.f1, stray.auc, stray.support, stray.answers) == (
        0.0,
        None,
        None,
        None,
        0,
        1,
    )
    assert (found.precision, found.recall, found.f1, found.present) == (1.0, 0.75, pytest.approx(5 / 6), 2)
    told = metrics.precision_recall_fscore_support(labels, predicted, labels=[0, 1], average="macro", zero_division=0)
    assert (found.precision, found.recall, found.f1) == pytest.approx(told[:3])
    # Left alone, scikit-learn counts the stray answer as a class of its own.
    alone = metrics.precision_recall_fscore_support(labels, predicted, average="macro", zero_division=0)
    assert alone[0] == pytest.approx(2 / 3)
    assert alone[1] == pytest.approx(0.5)


def test_a_class_neither_present_nor_answered():
    found = classification(answers([0, 1]), [0, 1])
    assert found.classes[2] == (None, None, None, None, 0, 0)
    assert (found.accuracy, found.precision, found.recall, found.f1, found.auc) == (1, 1, 1, 1, 1)


def test_one_class_alone_has_no_auc():
    found = classification(answers([0, 0, 1]), [0, 0, 0])
    assert found.auc is None
    assert found.classes[0].auc is None
    assert (found.recall, found.precision, found.present) == (pytest.approx(2 / 3), 1.0, 1)


def test_one_image_and_a_tie():
    found = classification([[0.4, 0.4, 0.2]], [1])
    assert (found.accuracy, found.precision, found.recall, found.f1, found.n) == (0, 0, 0, 0, 1)
    assert found.confusion.tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]


def test_unfit_input_is_refused():
    with pytest.raises(TrainingError, match="without images"):
        classification(np.empty((0, 3)), np.empty(0, dtype=int))
    with pytest.raises(TrainingError, match="not finite"):
        classification([[np.nan, 0.5]], [0])
    with pytest.raises(TrainingError, match="not a class"):
        classification([[0.5, 0.5]], [2])
