"""When an answer goes to a doctor: the threshold on u, and the decision for one image."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import TrainingError
from fedretina.metric_inputs import checked_errors
from fedretina.settings.scheme import GradingScheme
from fedretina.uncertainty.theta import roc

ThresholdReason = Literal[
    "measured", "refer_all", "too_few_images", "too_few_right", "tied", "no_errors", "too_few_errors"
]
ReferralReason = Literal[
    "referable grade",
    "ungradable",
    "doubtful",
    "chance of disease",
    "another kind of image",
    "unlike this site's photographs",
    "unusual for this site",
    "unreadable image",
    "no answer",
]
LEAST_IMAGES = 20
LEAST_ERRORS = 5
REFER_ALL = 0.0


class ReferralThreshold(NamedTuple):
    """A site's threshold on u and how it came about.

    Attributes:
        value: An answer is doubtful when u >= value; in [0, 1], and 0 refers every answer.
        reason: "measured" where the rule gave it; see `referral_threshold` for the others.
        images: Images of the validation split.
        errors: Wrong answers among them.
        caught: Wrong answers at or above the threshold.
        alarms: Right answers at or above the threshold.
    """

    value: float
    reason: ThresholdReason
    images: int
    errors: int
    caught: int
    alarms: int


class Referral(NamedTuple):
    """The decision for one image.

    Attributes:
        refer: Whether a doctor must see it.
        reasons: Why, in a fixed order; empty when it is not referred.
    """

    refer: bool
    reasons: tuple[ReferralReason, ...]


UNREADABLE = Referral(True, ("unreadable image",))
NO_ANSWER = Referral(True, ("no answer",))


def referral_threshold(uncertainty: ArrayLike, wrong: ArrayLike) -> ReferralThreshold:
    """The observed u that maximises 2 TPR - FPR on the validation split (UIOS, Wang et al. 2023).

    Positive is a wrong answer, and an answer is flagged when u >= threshold. A missed wrong answer counts twice as
    much as a needless referral, since a doctor corrects the one and nobody the other. This is not the theta of UAW:
    that one is measured while training, on images that the model learns from, and weighs both mistakes alike.

    Of equal gain the smallest threshold wins, so that a tie is settled by more referrals. The gain is compared in
    whole numbers. Flagging everything has the gain 2 - 1 = 1 whatever u is worth; where nothing beats it, or the rule
    asks for the smallest u that was observed, the threshold becomes 0: a new image that is surer still than all of
    validation must not slip below it.

    Where the split cannot bear the rule, the safer choice is made, the first that holds:

    | case | value | reason |
    |---|---|---|
    | fewer than 20 images, or none | 0, refer all | too_few_images |
    | fewer than 5 right answers, or all wrong | 0, refer all | too_few_right |
    | all u equal | 0, refer all | tied |
    | no wrong answer | largest u observed: what is more doubtful than all that was checked | no_errors |
    | fewer than 5 wrong answers | smallest u of a wrong answer, so that all are caught; 0 if least | too_few_errors |
    | u says nothing or the contrary | 0, refer all | refer_all |

    Args:
        uncertainty: [N], finite, in [0, 1].
        wrong: Whether the answer was wrong [N], bool or 0 and 1.

    Returns:
        A threshold that is always finite.

    Raises:
        TrainingError: The shapes differ, a u is not finite or not in [0, 1], or a verdict is neither 0 nor 1.
    """
    u, verdicts = np.asarray(uncertainty, dtype=np.float64), np.asarray(wrong)
    if u.size or verdicts.size:
        u, verdicts = checked_errors(u, verdicts)
    if u.size and (np.min(u) < 0 or np.max(u) > 1):
        raise TrainingError("the referral threshold needs uncertainties in [0, 1], but found one outside.")
    value, reason = _chosen(u, verdicts.astype(np.bool_))
    flagged = u >= value
    errors, caught = int(np.sum(verdicts)), int(np.sum(flagged & (verdicts == 1)))
    return ReferralThreshold(value, reason, u.size, errors, caught, int(np.sum(flagged)) - caught)


def _chosen(u: NDArray[np.float64], wrong: NDArray[np.bool_]) -> tuple[float, ThresholdReason]:
    errors = int(np.sum(wrong))
    right = u.size - errors
    if u.size < LEAST_IMAGES:
        return REFER_ALL, "too_few_images"
    if right < LEAST_ERRORS:
        return REFER_ALL, "too_few_right"
    least = float(np.min(u))
    if least == np.max(u):
        return REFER_ALL, "tied"
    if errors == 0:
        return float(np.max(u)), "no_errors"
    if errors < LEAST_ERRORS:
        lowest = float(np.min(u[wrong]))
        return (lowest if lowest > least else REFER_ALL), "too_few_errors"
    curve = roc(u, wrong)
    gain = 2 * curve.hits * right - curve.alarms * errors  # (2 TPR - FPR) x errors x right
    best = float(curve.thresholds[np.flatnonzero(gain == np.max(gain))[-1]])
    return (best, "measured") if best > least else (REFER_ALL, "refer_all")


def refer(
    grade: int,
    uncertainty: float,
    threshold: float,
    scheme: GradingScheme,
    chance: float = 0.0,
    promise: float | None = None,
) -> Referral:
    """Decide for one image.

    Where the scheme names no referable grades, no grade refers by itself: only doubt and "ungradable" do.

    Args:
        grade: The class answered.
        uncertainty: u of the answer; one that is no number counts as doubtful.
        threshold: A `ReferralThreshold.value`.
        scheme: Names the referable grades and the ungradable one.
        chance: Of a referable grade; one that is no number refers.
        promise: A `promise.Promise.threshold`; None where no chance refers by itself.

    Returns:
        The decision with all its reasons.
    """
    found: tuple[tuple[ReferralReason, bool], ...] = (
        ("referable grade", grade in scheme.referable_classes),
        ("ungradable", grade == scheme.ungradable_class),
        ("doubtful", not uncertainty < threshold),
        ("chance of disease", promise is not None and not chance < promise),
    )
    reasons = tuple(reason for reason, holds in found if holds)
    return Referral(bool(reasons), reasons)
