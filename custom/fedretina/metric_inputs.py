"""Checks that every metric shares; a metric on broken input must not be a number."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import TrainingError


def checked_scores(scores: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Check class scores [N, K] against labels [N] and give both as arrays.

    Args:
        scores: Finite, K at least 2, N at least 1.
        labels: Whole numbers, 0 to K - 1.

    Returns:
        Scores as float64 [N, K] and labels as int64 [N].

    Raises:
        TrainingError: A shape, score or label breaks these rules; the message names no label.
    """
    matrix = np.asarray(scores, dtype=np.float64)
    classes = np.asarray(labels)
    if matrix.ndim != 2 or matrix.shape[1] < 2 or classes.shape != matrix.shape[:1]:
        raise TrainingError(
            "A metric needs scores [N, K] with K of 2 or more and labels [N], but got others. Collect both from the "
            "same images."
        ).with_note(f"Their shapes are {matrix.shape} and {classes.shape}.")
    if not classes.size:
        raise TrainingError("A metric was asked for a split without images. Give the split at least one image.")
    if not np.isfinite(matrix).all():
        raise TrainingError(
            "A metric was given scores that are not finite. Lower the learning rate or train in float32."
        )
    if not np.issubdtype(classes.dtype, np.integer) or classes.min() < 0 or classes.max() >= matrix.shape[1]:
        raise TrainingError(
            f"A label is not a class of the network, which answers with {matrix.shape[1]} classes. "
            "Let the site's grading scheme and the network's head agree."
        )
    return matrix, classes.astype(np.int64)


def checked_errors(uncertainty: ArrayLike, wrong: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Check uncertainties [N] against verdicts [N] (wrong or not) and give both as arrays.

    Args:
        uncertainty: Finite, N at least 1, of any range; larger means less sure.
        wrong: bool, or 0 and 1.

    Returns:
        Uncertainty as float64 [N] and verdicts as bool [N].

    Raises:
        TrainingError: A shape or value breaks these rules.
    """
    scores, verdicts = np.asarray(uncertainty, dtype=np.float64), np.asarray(wrong)
    if scores.ndim != 1 or scores.shape != verdicts.shape:
        raise TrainingError(
            "A metric needs one uncertainty and one verdict per image, but got others. Collect both from the same "
            "images."
        ).with_note(f"Their shapes are {scores.shape} and {verdicts.shape}.")
    if not scores.size:
        raise TrainingError("A metric was asked for a split without images. Give the split at least one image.")
    if not np.isfinite(scores).all():
        raise TrainingError(
            "Uncertainties that are not finite cannot be scored. Lower the learning rate or train in float32."
        )
    if not np.isin(verdicts, (0, 1)).all():
        raise TrainingError("A metric needs verdicts of 0 (right) or 1 (wrong), but found other values.")
    return scores, verdicts.astype(np.bool_)
