"""What an answer without looking would reach: always the most frequent grade, with the frequencies as its odds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import TrainingError
from fedretina.evaluation.metrics import brier, nll


class MajorityBaseline(NamedTuple):
    """Figures of the same answer to every image.

    Attributes:
        accuracy: Share of right answers.
        balanced_accuracy: Mean recall over the grades that are there: one over their number, or 0.
        brier: Squared error of the probabilities, 0 to 2.
        nll: Negative log-likelihood in nats.
    """

    accuracy: float
    balanced_accuracy: float
    brier: float
    nll: float


def shares_of(known: ArrayLike, grades: int) -> NDArray[np.float64]:
    """How common each grade is [K], each with one label more than were seen, so that none is impossible.

    Args:
        known: Labels that the site knows [V]; V may be 0.
        grades: K.
    """
    counts = np.bincount(np.asarray(known, dtype=np.int64), minlength=grades) + 1
    shares: NDArray[np.float64] = counts / np.sum(counts)
    return shares


def majority_baseline(known: ArrayLike, labels: ArrayLike, grades: int) -> MajorityBaseline:
    """Judge the answer that a site could give from its own label counts.

    A model that is no better has learnt how common the grades are, however high its accuracy.

    Args:
        known: Labels that the site knows, such as its validation split's [V]; V may be 0.
        labels: Labels of the images that are answered [N], N at least 1.
        grades: K.

    Raises:
        TrainingError: There is no image, or a label is none of the grades.
    """
    seen, truth = np.asarray(known, dtype=np.int64), np.asarray(labels, dtype=np.int64)
    both = np.concatenate([seen, truth])
    if not truth.size or np.min(both) < 0 or np.max(both) >= grades:
        raise TrainingError(f"a constant answer needs an image or more, and labels of 0 to {grades - 1}.")
    shares = shares_of(seen, grades)
    odds = np.tile(shares, (truth.size, 1))
    right = truth == int(np.argmax(shares))
    return MajorityBaseline(
        accuracy=float(np.mean(right)),
        balanced_accuracy=float(np.any(right)) / np.unique(truth).size,
        brier=brier(odds, truth),
        nll=nll(odds, truth),
    )
