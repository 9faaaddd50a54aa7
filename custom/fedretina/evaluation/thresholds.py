"""What other thresholds on the doubt would have referred and missed, on the patients of a validation split."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedretina.evaluation.figures import LabelledPredictions
from fedretina.settings.scheme import GradingScheme
from fedretina.uncertainty.promise import chance_of_disease
from fedretina.uncertainty.referral import refer

_MOST = 101


class ThresholdCurve(NamedTuple):
    """Patients that each threshold refers, and ill ones that it misses.

    Attributes:
        patients: Patients of the split.
        ill: Those with a referable grade; None where the scheme names none, and then nobody is known to be missed.
        at: Thresholds on u, ascending in [0, 1], from 0, which refers everyone, to 1; at most 102.
        referred: Patients that each refers, for any reason.
        missed: Ill patients whom each does not refer; empty where `ill` is None.
    """

    patients: int
    ill: int | None
    at: tuple[float, ...]
    referred: tuple[int, ...]
    missed: tuple[int, ...]


def threshold_curve(
    labelled: LabelledPredictions, threshold: float, scheme: GradingScheme, promise: float | None = None
) -> ThresholdCurve:
    """Count patients over all thresholds on u; the other reasons to refer stay as they are, the gate's are not counted.

    A patient is referred when any image is and ill when any is, as `figures.triage` counts them.

    Args:
        labelled: Answers and truth of the validation split, with the doubt that the threshold stands on.
        threshold: The one in use, which is always among them.
        scheme: Names the referable grades.
        promise: A `promise.Promise.threshold`.
    """
    chances = chance_of_disease(labelled.probabilities, scheme) if len(labelled.labels) else ()
    sick = set(scheme.referable_classes)
    scores: dict[str, float] = {}
    ill: set[str] = set()
    for patient, grade, u, label, chance in zip(
        labelled.patients,
        labelled.predicted.tolist() if len(labelled.labels) else (),
        labelled.uncertainty.tolist(),
        labelled.labels.tolist(),
        chances,
        strict=True,
    ):
        # Beyond any u, so that only what else refers is left.
        other = refer(grade, u, math.inf, scheme, float(chance), promise).refer
        scores[patient] = max(scores.get(patient, 0.0), math.inf if other else u)
        if label in sick:
            ill.add(patient)
    every = np.array(list(scores.values()))
    seen = np.unique(every[np.isfinite(every)])
    if len(seen) > _MOST - 2:
        seen = np.unique(np.quantile(seen, np.linspace(0, 1, _MOST - 2), method="nearest"))
    at = sorted({0.0, 1.0, float(threshold), *seen.tolist()})
    unwell = np.array([scores[patient] for patient in sorted(ill)])
    return ThresholdCurve(
        patients=len(scores),
        ill=len(ill) if sick else None,
        at=tuple(at),
        referred=tuple(int(np.sum(every >= one)) for one in at),
        missed=tuple(int(np.sum(unwell < one)) for one in at) if sick else (),
    )
