"""Metrics of the probabilities: are they as often right as they say?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedretina.errors import SettingsError
from fedretina.uncertainty.inputs import checked_scores


def ece(probabilities: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error of the largest probability, bins (lo, hi] of equal width.

    Args:
        probabilities: [N, K].
        labels: [N], 0 to K - 1.
        bins: Number of bins, 1 or more; 15 is the field's habit.

    Returns:
        Mean gap between confidence and accuracy, weighted by the images of a bin, in [0, 1].

    Raises:
        SettingsError: bins is below 1.
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    if bins < 1:
        raise SettingsError(f"bins is {bins}; the calibration error needs 1 or more. The habit is 15.")
    matrix, classes = checked_scores(probabilities, labels)
    confidence = matrix.max(1)
    right = matrix.argmax(1) == classes
    inner = np.linspace(0, 1, bins + 1)[1:-1]
    place = np.searchsorted(inner, confidence, side="left")  # side left puts a value on an edge below it: (lo, hi]
    gap = np.bincount(place, weights=confidence - right, minlength=bins)
    return float(np.abs(gap).sum() / classes.size)


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Brier score of several classes: mean of the sum over classes of (p_k - y_k)^2.

    Args:
        probabilities: [N, K].
        labels: [N], 0 to K - 1.

    Returns:
        A number in [0, 2] (Brier's own form; some libraries halve it or divide by K).

    Raises:
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    matrix, classes = checked_scores(probabilities, labels)
    onehot = np.eye(matrix.shape[1])[classes]
    return float(((matrix - onehot) ** 2).sum(1).mean())


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean negative log probability of the true class.

    Args:
        probabilities: [N, K].
        labels: [N], 0 to K - 1.

    Returns:
        A number in nats, 0 or above. A probability of 0 counts as the smallest normal float64, so the worst
        is 708.4 and never infinite.

    Raises:
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    matrix, classes = checked_scores(probabilities, labels)
    own = matrix[np.arange(classes.size), classes]
    return float(-np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean())
