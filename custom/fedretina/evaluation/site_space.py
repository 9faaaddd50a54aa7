"""Answers of one shared label space as a site reads them that knows only some of its classes, or merges a few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import SettingsError, TrainingError

Cover = Sequence[Sequence[int]]
"""For each grade of a site, in order, the shared classes that it stands for."""


def in_site_space(probabilities: ArrayLike, cover: Cover) -> NDArray[np.float64]:
    """Probabilities of a site's grades from those of the shared classes.

    The shared classes of a grade are summed (an "AMD" of the site may be CNV or DRUSEN), and the result is divided by
    its sum over the grades: the answer given that the truth is one of them. That is an easier question than the whole
    one, since the model cannot err to a class that the site does not know; a report should say so, and how often it
    would have (`outside`). Where no probability is left on the site's grades, the answer says nothing about them, and
    all grades are equally likely.

    Args:
        probabilities: float [N, S] over the shared classes, finite, 0 or above.
        cover: Shared classes of each grade; every grade has one or more, and no class belongs to two.

    Returns:
        float64 [N, G], G the number of grades; a row sums to 1.

    Raises:
        SettingsError: The cover is no cover of S classes.
        TrainingError: The probabilities are unfit.
    """
    matrix, members = _checked(probabilities, cover)
    summed = np.stack([np.sum(matrix[:, list(own)], axis=1) for own in members], axis=1)
    total = np.sum(summed, axis=1, keepdims=True)
    answers: NDArray[np.float64] = np.full(summed.shape, 1 / len(members))
    np.divide(summed, total, out=answers, where=total > 0)
    return answers


def outside(probabilities: ArrayLike, cover: Cover) -> NDArray[np.bool_]:
    """Whether the likeliest shared class is none of the site's [N], which `in_site_space` does not let count.

    Args:
        probabilities: float [N, S], as for `in_site_space`.
        cover: As for `in_site_space`.

    Raises:
        SettingsError: The cover is no cover of S classes.
        TrainingError: The probabilities are unfit.
    """
    matrix, members = _checked(probabilities, cover)
    return ~np.isin(np.argmax(matrix, axis=1), [one for own in members for one in own])


def _checked(probabilities: ArrayLike, cover: Cover) -> tuple[NDArray[np.float64], list[tuple[int, ...]]]:
    matrix = np.asarray(probabilities, dtype=np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all() or (matrix.size and np.min(matrix) < 0):
        raise TrainingError(
            f"Probabilities of the shared classes must be finite and 0 or above, [N, S], but got shape {matrix.shape} "
            "or other values. Give the answers of an estimator."
        )
    members = [tuple(int(one) for one in own) for own in cover]
    flat = [one for own in members for one in own]
    in_range = all(0 <= one < matrix.shape[1] for one in flat)
    if len(members) < 2 or not all(members) or len(set(flat)) < len(flat) or not in_range:
        raise SettingsError(
            f"the cover {members} does not fit {matrix.shape[1]} shared classes: name for each of two grades or more "
            "the classes it stands for, 0 or above, each class once."
        )
    return matrix, members
