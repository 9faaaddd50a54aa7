"""Split-conformal sets: instead of one grade, the grades that cannot be ruled out at a chosen error rate."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import SettingsError
from fedretina.evaluation.bootstrap import Share, exact_interval
from fedretina.metric_inputs import checked_scores


class SetFigures(NamedTuple):
    """How sets do on a split.

    Attributes:
        coverage: Images whose set holds the true grade, with the exact 95 % interval. It is exact for independent
            images; with several images a patient it is too narrow.
        mean_size: Grades in a set, on average.
    """

    coverage: Share
    mean_size: float


def conformal_quantile(probabilities: ArrayLike, labels: ArrayLike, alpha: float = 0.1) -> float:
    """Find on calibration images up to which score a grade belongs in a set.

    The sets then hold the truth of a new image with a chance of 1 - alpha or more. That holds for images of the same
    kind as the calibration's (exchangeable with them), on average over both draws, whatever the model is worth; a bad
    model pays with large sets. It does not hold grade by grade, nor after the camera has changed. The calibration must
    be images that the model has not seen: the validation split of a site, which chose the round, is nearly that.

    A grade's score is one less its probability: least ambiguous sets (Sadinle et al. 2019), the smallest on average,
    which may be empty. The quantile is the k-th smallest score of the true grades, k = ceil((n + 1)(1 - alpha)), which
    is exact for finite n. No randomness is used, so equal images have equal sets; coverage is then a little above
    1 - alpha, by at most 1 / (n + 1) where no scores tie.

    Args:
        probabilities: [N, K]; N may be 0.
        labels: [N], 0 to K - 1.
        alpha: Error rate, in (0, 1).

    Returns:
        The score up to which a grade is in the set; infinite where k is above n, so that every set is whole.

    Raises:
        SettingsError: alpha is not within (0, 1).
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    exact = _exact(alpha)
    if not np.asarray(labels).size:
        return math.inf
    matrix, truth = checked_scores(probabilities, labels)
    own = 1 - matrix[np.arange(truth.size), truth]
    k = math.ceil((truth.size + 1) * (1 - exact))
    return math.inf if k > truth.size else float(np.sort(own)[k - 1])


def prediction_sets(probabilities: ArrayLike, quantile: float) -> NDArray[np.bool_]:
    """Which grades are in the set of each image.

    Args:
        probabilities: [N, K], finite.
        quantile: Of the same model and label space.

    Returns:
        bool [N, K].

    Raises:
        TrainingError: The probabilities are unfit.
    """
    matrix, _ = checked_scores(probabilities, np.zeros(len(np.asarray(probabilities)), dtype=np.int64))
    return np.asarray(1 - matrix <= quantile, dtype=np.bool_)


def judge_sets(sets: ArrayLike, labels: ArrayLike) -> SetFigures:
    """Count how often sets hold the truth, and how large they are.

    Args:
        sets: bool [N, K], N at least 1.
        labels: [N], 0 to K - 1.

    Raises:
        TrainingError: Shapes or labels are unfit.
    """
    matrix, truth = checked_scores(sets, labels)
    inside = matrix[np.arange(truth.size), truth] > 0
    return SetFigures(
        coverage=cast(Share, exact_interval(int(np.sum(inside)), truth.size)),  # there is at least one image
        mean_size=float(np.mean(np.sum(matrix > 0, axis=1))),
    )


def _exact(alpha: float) -> Fraction:
    """The decimal that was meant: 30 x 0.1 is 3, not a little more."""
    if not 0 < alpha < 1:
        raise SettingsError(f"the error rate is {alpha}: use a number between 0 and 1, such as 0.1.")
    return Fraction(str(alpha))
