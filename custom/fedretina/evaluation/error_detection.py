"""Metrics of the uncertainty: does it find the wrong answers?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedretina.evaluation.inputs import checked_errors
from fedretina.evaluation.ranking import auroc


def error_detection_auroc(uncertainty: ArrayLike, wrong: ArrayLike) -> float | None:
    """Chance that a wrong answer is less certain than a right one.

    Differs from the FedEE code, which returns 1.0 where this is undefined and so lifts small sites.

    Args:
        uncertainty: [N], larger means less sure.
        wrong: bool [N].

    Returns:
        A number in [0, 1], 0.5 for an uncertainty that says nothing; None with no or only wrong answers.

    Raises:
        TrainingError: Shapes or values are unfit.
    """
    return auroc(*checked_errors(uncertainty, wrong))


def aurc(uncertainty: ArrayLike, wrong: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean error rate of the n surest answers, over n = 1..N.

    Equal uncertainties have no order of their own, so their errors are spread evenly over the tie (the mean
    over all orders); the order of the images changes nothing.

    Args:
        uncertainty: [N], larger means less sure.
        wrong: bool [N].

    Returns:
        A number in [0, 1], smaller is better; the error rate itself if all are tied, 0 without errors.

    Raises:
        TrainingError: Shapes or values are unfit.
    """
    scores, verdicts = checked_errors(uncertainty, wrong)
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    share = np.bincount(group, weights=verdicts) / sizes  # error rate of each group of equal uncertainty
    failures = np.cumsum(np.repeat(share, sizes))
    return float((failures / np.arange(1, scores.size + 1)).mean())
