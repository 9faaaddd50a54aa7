"""What referral would mean for patients: how many a doctor sees, and how many ill ones nobody sees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedretina.errors import TrainingError
from fedretina.evaluation.exact_interval import Share, exact_interval
from fedretina.evaluation.judged import Judged
from fedretina.settings.scheme import GradingScheme
from fedretina.uncertainty.referral import refer


class Triage(NamedTuple):
    """Figures over patients, each with its exact 95 % interval; None where there is nobody to count.

    Attributes:
        load: Patients referred, of all.
        doubt_load: Patients referred for doubt alone, of all: what the uncertainty costs.
        missed: Ill patients not referred, of the ill.
        sensitivity: Ill patients referred, of the ill.
        specificity: Patients not referred, of those without referable disease whose images could all be graded.
    """

    load: Share | None
    doubt_load: Share | None
    missed: Share | None
    sensitivity: Share | None
    specificity: Share | None


def triage(judged: Judged, threshold: float, scheme: GradingScheme) -> Triage:
    """Apply the referral rule to a split and count patients.

    A patient is referred when any image is, and ill when any image's true grade is referable. Patients and not images
    are counted: a person is sent to the doctor, not an eye, and the two eyes of a person resemble each other, so an
    interval over eyes would be too narrow. A patient with an image that no person could grade is not known to be
    healthy and does not count towards the specificity.

    Ask it of the test split with the threshold of the validation split. The threshold was chosen to look well on
    validation, and so was the round of the model: figures from there would promise too much. Test has decided
    nothing. The load holds for patients as in that split; where more are ill, more are referred.

    Args:
        judged: Answers and truth of the split; may be empty.
        threshold: A `ReferralThreshold.value`.
        scheme: Names the referable grades and the ungradable one. Without referable grades nobody is known to be
            ill, and only the loads are told.

    Returns:
        The figures.

    Raises:
        TrainingError: The arrays differ in length.
    """
    sizes = {len(judged.probabilities), len(judged.uncertainty), len(judged.labels), len(judged.patients)}
    if len(sizes) != 1:
        raise TrainingError(
            "triage needs one answer, label and patient an image, but got more of one than of another. Collect all of "
            "them from the same split."
        ).with_note(f"Their lengths are {sorted(sizes)}.")
    reasons: dict[str, set[str]] = {}
    truths: dict[str, set[int]] = {}
    predicted = np.argmax(judged.probabilities, axis=1) if len(judged.labels) else ()
    for patient, grade, u, label in zip(judged.patients, predicted, judged.uncertainty, judged.labels, strict=True):
        decision = refer(int(grade), float(u), threshold, scheme)
        reasons.setdefault(patient, set()).update(decision.reasons)
        truths.setdefault(patient, set()).add(int(label))
    sick = set(scheme.referable_classes)
    ill = {patient for patient, grades in truths.items() if grades & sick}
    well = {patient for patient, grades in truths.items() if not grades & (sick | {scheme.ungradable_class})}
    referred = {patient for patient, why in reasons.items() if why}
    doubted = {patient for patient, why in reasons.items() if why == {"doubtful"}}
    everyone = len(reasons)
    return Triage(
        load=exact_interval(len(referred), everyone),
        doubt_load=exact_interval(len(doubted), everyone),
        missed=exact_interval(len(ill - referred), len(ill)),
        sensitivity=exact_interval(len(ill & referred), len(ill)),
        specificity=exact_interval(len(well - referred), len(well)) if sick else None,
    )
