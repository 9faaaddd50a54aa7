"""The paired test of two AUCs over the same images, with the eyes of a patient counted as one witness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from fedretina.errors import TrainingError
from fedretina.metric_inputs import checked_errors
from fedretina_papers.statistics.multiple_tests import two_sided

_NO_VARIANCE = 1e-18  # of a difference of AUCs: rounding alone


class AucDifference(NamedTuple):
    """Two AUCs on the same images and what their difference is worth.

    Attributes:
        first: AUC of the first scores, in [0, 1].
        second: AUC of the second scores, in [0, 1].
        difference: first - second.
        variance: Of the difference; None where it cannot be estimated.
        z: difference / sqrt(variance); 0 for scores that rank alike, None where there is no variance to divide by.
        p: Two-sided, of the normal distribution; None with z.
    """

    first: float
    second: float
    difference: float
    variance: float | None
    z: float | None
    p: float | None


def delong_test(
    first: ArrayLike, second: ArrayLike, positive: ArrayLike, patients: Sequence[str] | None = None
) -> AucDifference | None:
    """Compare two AUCs over the same images (DeLong et al., Biometrics 1988; clusters: Obuchowski, Biometrics 1997).

    An AUC is a mean over positives and over negatives, of the share of the other side that an image beats. DeLong's
    variance is that of those two means. Obuchowski lets the images of a cluster vary together: shares are summed
    over a patient first, and a patient with images on both sides adds a covariance. With a patient an image it is
    DeLong's own. Ranks are found by sorting, so that the cost is N log N (Sun and Xu, IEEE SPL 2014).

    Where both rows separate everything, or one beats the other on every image alike, the estimated variance is zero
    although other patients would differ: there is no p then, unless the two rank exactly alike, which is no
    difference at all (p 1).

    Args:
        first: Scores of the first row, finite [N]; larger means likelier positive.
        second: Scores of the second row on the same images [N].
        positive: bool [N].
        patients: Patient of each image [N]; None counts every image as a patient of its own.

    Returns:
        The comparison; None without a positive or without a negative.

    Raises:
        TrainingError: Shapes or values are unfit.
    """
    scores, truth = checked_errors(first, positive)
    others, _ = checked_errors(second, positive)
    if patients is not None and len(patients) != truth.size:
        raise TrainingError(
            f"a test over patients needs one patient an image, but got {len(patients)} for {truth.size}. Collect both "
            "from the same images."
        )
    if np.all(truth) or not np.any(truth):
        return None
    wins, rivals = _shares(scores, truth), _shares(others, truth)
    auc, rival = float(np.mean(wins[truth])), float(np.mean(rivals[truth]))
    owner = np.arange(truth.size) if patients is None else np.unique(np.asarray(patients), return_inverse=True)[1]
    if np.max(np.abs(wins - rivals)) == 0:
        return AucDifference(auc, rival, 0.0, 0.0, 0.0, 1.0)
    variance = _variance(wins - rivals, truth, owner)
    difference = auc - rival
    if variance is None or variance <= _NO_VARIANCE:
        return AucDifference(auc, rival, difference, variance, None, None)
    z = difference / float(np.sqrt(variance))
    return AucDifference(auc, rival, difference, variance, z, two_sided(z))


def _shares(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Share of the other side that each image is rightly ranked against, half for a tie [N]."""
    shares = np.empty(scores.size)
    ones, zeros = scores[positive], scores[~positive]
    everyone = rankdata(scores)
    shares[positive] = (everyone[positive] - rankdata(ones)) / zeros.size  # V10
    shares[~positive] = 1 - (everyone[~positive] - rankdata(zeros)) / ones.size  # V01
    return shares


def _variance(shares: NDArray[np.float64], positive: NDArray[np.bool_], owner: NDArray[np.intp]) -> float | None:
    """Variance of a mean of shares by Obuchowski's formula; None with one patient on a side."""
    m, n = int(np.sum(positive)), int(np.sum(~positive))
    people = int(np.max(owner)) + 1
    sums = []
    for side in (positive, ~positive):
        centred = shares[side] - np.mean(shares[side])
        sums.append(np.bincount(owner[side], weights=centred, minlength=people))
    ill, well = np.unique(owner[positive]).size, np.unique(owner[~positive]).size  # I10, I01
    if ill < 2 or well < 2:
        return None
    ones = ill / (ill - 1) * float(np.sum(sums[0] ** 2)) / m**2
    zeros = well / (well - 1) * float(np.sum(sums[1] ** 2)) / n**2
    both = people / (people - 1) * float(np.sum(sums[0] * sums[1])) / (m * n)
    return ones + zeros + 2 * both
