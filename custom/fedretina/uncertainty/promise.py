"""A referral with a guarantee: how large a chance of disease refers, so that few ill patients pass unseen.

A site says how many of its patients with referable disease may pass at most, and how sure that must be. The threshold
on the model's chance of referable disease is the largest at which the exact binomial upper bound of that share, over
the site's own validation patients, keeps the promise: risk control by an upper confidence bound (Bates et al.,
"Distribution-free, risk-controlling prediction sets", JACM 2021). The bound may be asked at each threshold, since
nobody passes at a lower one who did not pass at a higher. Patients and not images are counted, a patient by the worst
of the images.

It holds for patients like those of the validation split, with at least that probability over the draw of the split. It
counts what the model's other reasons to refer find as found. Those were chosen on the same patients, which is a small
debt; docs/promise.md has what it came to on patients whom neither training nor threshold had seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import TrainingError
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import PromiseSettings

PromiseReason = Literal["kept", "too_few_patients", "no_referable_grades", "drawn", "few_others", "another_model"]


class Promise(NamedTuple):
    """What can be promised, and what it takes.

    Attributes:
        threshold: An image refers when its chance of referable disease is this or more; None where nothing need be
            added to the other reasons, or nothing can be promised.
        reason: "kept" where the promise can be given. Of the others the last three are for a site that asks for a
            threshold all the same (`evaluation.referral_curve`): "drawn" where it has one, "few_others" where the other
            sites let too few counts go, "another_model" where the model is not the run's.
        missed: Share of the ill patients that may pass unseen.
        sure: How sure that is to be.
        patients: Ill patients of validation behind it.
        needed: How many ill patients it takes to promise so much at all.
        allowed: How many of `patients` may pass; None where nothing can be promised.
        passed: How many of them pass.
    """

    threshold: float | None
    reason: PromiseReason
    missed: float
    sure: float
    patients: int
    needed: int
    allowed: int | None
    passed: int


def patients_needed(missed: float, sure: float) -> int:
    """Ill patients of whom none may pass, for the promise to be possible: 45 for 5 % at 90 %, 59 at 95 %."""
    return math.ceil(math.log(1 - sure) / math.log(1 - missed))


def passes_allowed(patients: int, missed: float, sure: float) -> int | None:
    """How many of so many ill patients may pass, such that no more than `missed` of all do with `sure`.

    The largest k with P(Binomial(n, missed) <= k) <= 1 - sure, which is where the one-sided Clopper-Pearson bound of k
    of n is at most `missed`; None where not even 0 will do.
    """
    from scipy.special import bdtr

    chances = bdtr(np.arange(patients + 1, dtype=np.float64), patients, missed)
    fits = np.flatnonzero(chances <= 1 - sure)
    return int(fits[-1]) if fits.size else None


def chance_of_disease(probabilities: ArrayLike, scheme: GradingScheme) -> NDArray[np.float64]:
    """Each image's chance of a referable grade [N], from probabilities [N, K]; 0 where the site names none."""
    matrix = np.asarray(probabilities, dtype=np.float64)
    return np.asarray(matrix[:, list(scheme.referable_classes)].sum(axis=1), dtype=np.float64)


def scores_of_ill(
    chance: ArrayLike, referred: ArrayLike, labels: ArrayLike, patients: Sequence[str], scheme: GradingScheme
) -> NDArray[np.float64]:
    """The highest chance of each patient with a referable grade, sorted; infinite where another reason refers.

    Args:
        chance: Each image's chance of a referable grade [N]; see `chance_of_disease`.
        referred: Whether the image is referred whatever its chance [N].
        labels: True classes [N].
        patients: Patient of each image.
        scheme: Names the referable grades.

    Raises:
        TrainingError: The arrays differ in length, or a chance is no number.
    """
    score = np.where(np.asarray(referred, dtype=np.bool_), math.inf, np.asarray(chance, dtype=np.float64))
    truth = np.asarray(labels)
    if not len(score) == len(truth) == len(patients) or bool(np.isnan(score).any()):
        raise TrainingError(
            "a promise needs one finite chance, label and patient per image, but got others. Collect them from the "
            "same split."
        )
    highest: dict[str, float] = {}
    ill: set[str] = set()
    sick = set(scheme.referable_classes)
    for patient, value, label in zip(patients, score.tolist(), truth.tolist(), strict=True):
        highest[patient] = max(value, highest.get(patient, -math.inf))
        if label in sick:
            ill.add(patient)
    return np.sort(np.asarray([highest[patient] for patient in ill], dtype=np.float64))


def promised(
    chance: ArrayLike,
    referred: ArrayLike,
    labels: ArrayLike,
    patients: Sequence[str],
    scheme: GradingScheme,
    asked: PromiseSettings,
) -> Promise:
    """The threshold that keeps a promise, from a site's validation split.

    Args:
        chance: As `scores_of_ill` takes it, like all but the last.
        referred: Likewise.
        labels: Likewise.
        patients: Likewise.
        scheme: Likewise.
        asked: The promise.

    Raises:
        TrainingError: The arrays differ in length, or a chance is no number.
    """
    scores = scores_of_ill(chance, referred, labels, patients, scheme)
    unseen = int(np.isfinite(scores).sum())
    allowed = passes_allowed(scores.size, asked.missed, asked.sure)

    def told(reason: PromiseReason, threshold: float | None = None, passed: int = unseen) -> Promise:
        needed = patients_needed(asked.missed, asked.sure)
        return Promise(threshold, reason, asked.missed, asked.sure, scores.size, needed, allowed, passed)

    if not scheme.referable_classes:
        return told("no_referable_grades")
    if allowed is None:
        return told("too_few_patients")
    if unseen <= allowed:  # what else refers keeps the promise by itself
        return told("kept")
    # Refer from the score of the first patient who may not pass: those below it are `allowed` or, with ties, fewer.
    threshold = float(scores[allowed])
    return told("kept", threshold, int((scores < threshold).sum()))
