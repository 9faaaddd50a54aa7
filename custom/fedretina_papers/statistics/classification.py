"""Figures of each class and their plain means: precision, recall, F1 and one-vs-rest AUC."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import TrainingError
from fedretina.evaluation.metrics import auroc, macro_auc
from fedretina.metric_inputs import checked_scores


class ClassFigures(NamedTuple):
    """One class of a split; None where a figure is undefined.

    Attributes:
        precision: Of the answers that name the class, the share that is right; None if no answer names it. That is
            not 0: an answer that was never given was never wrong.
        recall: Of the images of the class, the share that is found; None if there are none.
        f1: 2 TP / (2 TP + FP + FN), which is 0 for a class that is present and never found; None if it is absent.
        auc: AUC of its probability against all other classes; None if it is absent or alone.
        support: Images of the class.
        answers: Answers that name the class.
    """

    precision: float | None
    recall: float | None
    f1: float | None
    auc: float | None
    support: int
    answers: int


class Classification(NamedTuple):
    """How a split was classified.

    The macro figures are plain means over the classes that are present, the same classes for all four, so that they
    can be set beside each other. Where a class is present but never answered its precision counts as 0 there: to leave
    it out would lift a model for giving up on the class. A class that is absent is left out even where some answers
    name it; each such answer is already missing from the recall of the true class. Scikit-learn agrees when it is told
    `labels=` the classes present and `zero_division=0`; left alone it also counts 0 for absent classes that were
    answered, so that one stray answer can cost a small site a K-th of its score.

    Attributes:
        classes: Figures of each class [K].
        confusion: Images by true class (row) and answered class (column) [K, K].
        accuracy: Share of right answers, in [0, 1].
        precision: Macro precision, in [0, 1].
        recall: Macro recall, in [0, 1]; also called balanced accuracy.
        f1: Mean of the classes' F1, in [0, 1]; not the F1 of the two means.
        auc: Macro one-vs-rest AUC, as `macro_auc`; None if fewer than two classes are present.
        present: Number of classes present.
        n: Number of images.
    """

    classes: tuple[ClassFigures, ...]
    confusion: NDArray[np.int64]
    accuracy: float
    precision: float
    recall: float
    f1: float
    auc: float | None
    present: int
    n: int


def confusion_matrix(predicted: ArrayLike, labels: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Count images by true class (row) and answered class (column).

    Args:
        predicted: Whole numbers [N], 0 to K - 1.
        labels: Whole numbers [N], 0 to K - 1.
        classes: K.

    Returns:
        [K, K]; all zero without images.

    Raises:
        TrainingError: The shapes differ, or a number is no class.
    """
    answer, truth = np.asarray(predicted), np.asarray(labels)
    for side in (answer, truth):
        unfit = side.ndim != 1 or side.shape != truth.shape
        if unfit or (side.size and (not np.issubdtype(side.dtype, np.integer) or np.min(side) < 0)):
            raise TrainingError(
                f"A confusion matrix needs whole class numbers for the same images, but got {answer.dtype} and "
                f"{truth.dtype}, or one longer than the other. Collect both from the same images."
            ).with_note(f"Their shapes are {answer.shape} and {truth.shape}.")
        if side.size and np.max(side) >= classes:
            raise TrainingError(
                f"A confusion matrix of {classes} classes met a class number beyond them. Let the site's grading "
                "scheme and the network's head agree."
            )
    pairs = truth.astype(np.int64) * classes + answer.astype(np.int64)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def classification(probabilities: ArrayLike, labels: ArrayLike) -> Classification:
    """Compute the figures of a split, all classes of one label space.

    Args:
        probabilities: [N, K], N at least 1, K at least 2. The answer is the largest, the first of equals.
        labels: [N], 0 to K - 1.

    Returns:
        The figures.

    Raises:
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    matrix, truth = checked_scores(probabilities, labels)
    answer = np.argmax(matrix, axis=1)
    counts = confusion_matrix(answer, truth, matrix.shape[1])
    classes = tuple(
        _class_figures(counts, k, auroc(matrix[:, k], truth == k) if np.any(truth == k) else None)
        for k in range(matrix.shape[1])
    )
    present = [one for one in classes if one.support]
    return Classification(
        classes=classes,
        confusion=counts,
        accuracy=float(np.trace(counts) / truth.size),
        precision=float(np.mean([one.precision or 0.0 for one in present])),
        recall=float(np.mean([one.recall for one in present if one.recall is not None])),
        f1=float(np.mean([one.f1 for one in present if one.f1 is not None])),
        auc=macro_auc(matrix, truth).value,
        present=len(present),
        n=int(truth.size),
    )


def _class_figures(counts: NDArray[np.int64], k: int, auc: float | None) -> ClassFigures:
    found, support, answers = int(counts[k, k]), int(np.sum(counts[k])), int(np.sum(counts[:, k]))
    return ClassFigures(
        precision=found / answers if answers else None,
        recall=found / support if support else None,
        f1=2 * found / (support + answers) if support else None,  # 2 TP + FP + FN = support + answers
        auc=auc,
        support=support,
        answers=answers,
    )
