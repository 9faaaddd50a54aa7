"""Split-conformal sets: instead of one grade, the grades that cannot be ruled out at a chosen error rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import SettingsError, TrainingError
from fedretina.evaluation.bootstrap import Share, exact_interval
from fedretina.metric_inputs import checked_scores

ScoreName = Literal["lac", "aps"]


class ConformalRule(NamedTuple):
    """A rule that turns probabilities into sets of grades.

    Attributes:
        score: "lac" or "aps", see `conformal_rule`.
        quantile: A grade is in the set when its score is at most this; infinite where the calibration is too small for
            the error rate, so that every set is whole.
        alpha: Error rate that was asked for.
        images: Images of the calibration.
    """

    score: ScoreName
    quantile: float
    alpha: float
    images: int


class SetFigures(NamedTuple):
    """How sets do on a split.

    Attributes:
        coverage: Images whose set holds the true grade, with the exact 95 % interval. It is exact for independent
            images; with several images a patient it is too narrow, and `patients` is the safe one.
        patients: Patients of whom every image is covered, with the exact interval; None where no patients were given.
        mean_size: Grades in a set, on average.
        single: Share of the sets with one grade: cases that are decided.
        empty: Share of the sets without any: no grade looks like those seen in calibration, a case for a doctor.
        whole: Share of the sets with all grades, which say nothing.
    """

    coverage: Share
    patients: Share | None
    mean_size: float
    single: float
    empty: float
    whole: float


def conformal_rule(
    probabilities: ArrayLike, labels: ArrayLike, alpha: float = 0.1, score: ScoreName = "lac"
) -> ConformalRule:
    """Find the rule on calibration images: its sets hold the truth of a new image with a chance of 1 - alpha or more.

    That holds for images of the same kind as the calibration's (exchangeable with them), on average over both draws,
    whatever the model is worth; a bad model pays with large sets. It does not hold grade by grade, nor after the camera
    has changed. The calibration must be images that the model has not seen: the validation split of a site, which chose
    the round, is nearly that.

    The quantile is the k-th smallest score with k = ceil((n + 1)(1 - alpha)), which is exact for finite n; where k is
    above n it is infinite. No randomness is used, so equal images have equal sets; coverage is then a little above
    1 - alpha, by at most 1 / (n + 1) where no scores tie.

    Args:
        probabilities: [N, K]; N may be 0.
        labels: [N], 0 to K - 1.
        alpha: Error rate, in (0, 1).
        score: "lac" (least ambiguous sets, Sadinle et al. 2019): 1 - p of the grade. Smallest sets on average, which
            may be empty. "aps" (adaptive sets, Romano et al. 2020): probability of all grades at least as likely.
            Larger where the answer is unclear; the likeliest grade is always in.

    Returns:
        The rule.

    Raises:
        SettingsError: alpha is not within (0, 1), or the score is unknown.
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    exact = _exact(alpha)
    if score not in ("lac", "aps"):
        raise SettingsError(f"there is no conformal score {score!r}: use 'lac' or 'aps'.")
    if not np.asarray(labels).size:
        return ConformalRule(score, math.inf, alpha, 0)
    matrix, truth = checked_scores(probabilities, labels)
    own = _scores(matrix, score)[np.arange(truth.size), truth]
    k = math.ceil((truth.size + 1) * (1 - exact))
    quantile = math.inf if k > truth.size else float(np.sort(own)[k - 1])
    return ConformalRule(score, quantile, alpha, int(truth.size))


def prediction_sets(probabilities: ArrayLike, rule: ConformalRule) -> NDArray[np.bool_]:
    """Which grades are in the set of each image.

    Args:
        probabilities: [N, K], finite.
        rule: Of the same model and label space.

    Returns:
        bool [N, K].

    Raises:
        TrainingError: The probabilities are unfit.
    """
    matrix, _ = checked_scores(probabilities, np.zeros(len(np.asarray(probabilities)), dtype=np.int64))
    sets = _scores(matrix, rule.score) <= rule.quantile
    if rule.score == "aps":
        sets |= matrix == np.max(matrix, axis=1, keepdims=True)
    return np.asarray(sets, dtype=np.bool_)


def judge_sets(sets: ArrayLike, labels: ArrayLike, patients: Sequence[str] | None = None) -> SetFigures:
    """Count how often sets hold the truth, and how large they are.

    Args:
        sets: bool [N, K], N at least 1.
        labels: [N], 0 to K - 1.
        patients: Patient of each image [N].

    Raises:
        TrainingError: Shapes or labels are unfit.
    """
    matrix, truth = checked_scores(sets, labels)
    inside = matrix[np.arange(truth.size), truth] > 0
    sizes = np.sum(matrix > 0, axis=1)
    return SetFigures(
        coverage=cast(Share, exact_interval(int(np.sum(inside)), truth.size)),  # there is at least one image
        patients=None if patients is None else _patients(inside, patients),
        mean_size=float(np.mean(sizes)),
        single=float(np.mean(sizes == 1)),
        empty=float(np.mean(sizes == 0)),
        whole=float(np.mean(sizes == matrix.shape[1])),
    )


def _patients(inside: NDArray[np.bool_], patients: Sequence[str]) -> Share | None:
    if len(patients) != inside.size:
        raise TrainingError(
            f"sets need one patient an image, but got {len(patients)} patients for {inside.size} images."
        )
    names, owner = np.unique(np.asarray(patients), return_inverse=True)
    missed = np.bincount(owner[~inside], minlength=names.size)
    return exact_interval(int(np.sum(missed == 0)), int(names.size))


def _scores(matrix: NDArray[np.float64], score: ScoreName) -> NDArray[np.float64]:
    """How little a grade looks like the answer [N, K], in [0, 1]."""
    if score == "lac":
        return 1 - matrix
    # One less all that is less likely, and not the sum of what is likelier: the least likely grade has exactly 1.
    below = matrix[:, None, :] < matrix[:, :, None]
    return np.asarray(1 - np.sum(np.where(below, matrix[:, None, :], 0), axis=2), dtype=np.float64)


def _exact(alpha: float) -> Fraction:
    """The decimal that was meant: 30 x 0.1 is 3, not a little more."""
    if not 0 < alpha < 1:
        raise SettingsError(f"the error rate is {alpha}: use a number between 0 and 1, such as 0.1.")
    return Fraction(str(alpha))
