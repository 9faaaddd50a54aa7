"""Metrics of the uncertainty: does it find the wrong answers?"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedretina.evaluation.ranking import auroc
from fedretina.uncertainty.inputs import checked_errors


class ErrorDetection(NamedTuple):
    """The AUROC of finding wrong answers, with the reason where it has none.

    Attributes:
        value: A number in [0, 1]; None where it is undefined, unless FedEE's rule was asked for.
        reason: "measured", "no_errors" or "only_errors".
        errors: Wrong answers.
        images: All answers.
    """

    value: float | None
    reason: Literal["measured", "no_errors", "only_errors"]
    errors: int
    images: int


def error_detection(uncertainty: ArrayLike, wrong: ArrayLike, fedee_compat: bool = False) -> ErrorDetection:
    """`error_detection_auroc` with the reason where it is undefined (FedEE Eq. 3, misdiagnosis detection).

    FedEE's code counts 1.0, the best value there is, where all answers are right and also where all are wrong. A
    small site, which has no error by luck, so lifts the mean over sites. A tie of a wrong with a right answer counts
    half here, and nothing in Eq. 3 as printed.

    Args:
        uncertainty: [N], larger means less sure.
        wrong: bool [N].
        fedee_compat: Count 1.0 where it is undefined, only for comparison with published numbers.

    Raises:
        TrainingError: Shapes or values are unfit.
    """
    scores, verdicts = checked_errors(uncertainty, wrong)
    errors = int(np.sum(verdicts))
    value = auroc(scores, verdicts)
    if value is not None:
        return ErrorDetection(value, "measured", errors, verdicts.size)
    reason: Literal["no_errors", "only_errors"] = "only_errors" if errors else "no_errors"
    return ErrorDetection(1.0 if fedee_compat else None, reason, errors, verdicts.size)


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
