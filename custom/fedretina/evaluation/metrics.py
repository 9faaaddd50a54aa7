"""Metrics of the grading itself: macro AUC, accuracy and quadratic kappa."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedretina.errors import TrainingError
from fedretina.evaluation.ranking import auroc
from fedretina.uncertainty.inputs import checked_scores


class MacroAuc(NamedTuple):
    """A one-vs-rest AUC and what it averages over.

    Attributes:
        value: Mean AUC in [0, 1]; None if fewer than two classes are present.
        classes: Number of classes present in the labels.
    """

    value: float | None
    classes: int


def macro_auc(scores: ArrayLike, labels: ArrayLike) -> MacroAuc:
    """Mean one-vs-rest AUC over the classes that are present (FedUAA Table 1, per site).

    Differs from `roc_auc_score` on one-hot labels, as the official code calls it, where a class is absent
    from the split: that is an error or NaN there; here the class is left out and `classes` says so.

    Args:
        scores: Class scores [N, K], larger means likelier; see `auc_scores` for the four kinds.
        labels: [N], 0 to K - 1.

    Returns:
        The mean with equal weights for classes, and their number.

    Raises:
        TrainingError: Shapes, scores or labels are unfit.
    """
    matrix, classes = checked_scores(scores, labels)
    present = np.unique(classes)
    if present.size < 2:
        return MacroAuc(None, int(present.size))
    values = [auroc(matrix[:, k], classes == k) for k in present]
    return MacroAuc(float(np.mean([value for value in values if value is not None])), int(present.size))


def accuracy(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Share of predictions that equal their label.

    Args:
        predicted: Class numbers [N].
        labels: Class numbers [N].

    Returns:
        A number in [0, 1].

    Raises:
        TrainingError: The shapes differ or there are no images.
    """
    answer, truth = _pair(predicted, labels)
    return float((answer == truth).mean())


def quadratic_kappa(predicted: ArrayLike, labels: ArrayLike) -> float | None:
    """Cohen's kappa with quadratic weights, the agreement measure of DR grading.

    It reads class numbers as an order. A class "ungradable" behind the grades (DDR) counts as one step worse
    than the worst grade, so kappa there is not comparable with a scheme without it.

    Args:
        predicted: Class numbers [N].
        labels: Class numbers [N].

    Returns:
        A number in [-1, 1]; 0 is the agreement of chance. None where it is undefined, that is where all
        predictions and all labels are the same single class.

    Raises:
        TrainingError: The shapes differ or there are no images.
    """
    answer, truth = (side.astype(np.float64) for side in _pair(predicted, labels))
    observed = float(((answer - truth) ** 2).mean())
    # Under independence E(a - b)^2 = var a + var b + (mean a - mean b)^2, so no confusion matrix is needed.
    expected = float(answer.var() + truth.var() + (answer.mean() - truth.mean()) ** 2)
    return None if expected == 0 else 1 - observed / expected


def _pair(predicted: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    answer, truth = np.asarray(predicted), np.asarray(labels)
    if answer.ndim != 1 or answer.shape != truth.shape or not answer.size:
        raise TrainingError(
            "A metric needs one prediction and one label an image, and at least one image, but got others. Collect "
            "both from the same images."
        ).with_note(f"Their shapes are {answer.shape} and {truth.shape}.")
    return answer, truth
