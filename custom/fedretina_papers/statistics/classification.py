"""Figures of each class and their plain means: precision, recall, F1 and one-vs-rest AUC."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

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
    answer, grades = np.argmax(matrix, axis=1), range(matrix.shape[1])
    precision, recall, f1, support = precision_recall_fscore_support(truth, answer, labels=grades, zero_division=np.nan)
    present = support > 0
    return Classification(
        classes=tuple(
            ClassFigures(
                precision=_known(precision[k]),
                recall=_known(recall[k]),
                f1=_known(f1[k]) if present[k] else None,
                auc=auroc(matrix[:, k], truth == k),
                support=int(support[k]),
                answers=int(np.sum(answer == k)),
            )
            for k in grades
        ),
        confusion=confusion_matrix(truth, answer, labels=grades),
        accuracy=float(np.mean(answer == truth)),
        precision=float(np.mean(np.nan_to_num(precision[present]))),
        recall=float(np.mean(recall[present])),
        f1=float(np.mean(f1[present])),
        auc=macro_auc(matrix, truth).value,
        present=int(np.sum(present)),
        n=int(truth.size),
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
