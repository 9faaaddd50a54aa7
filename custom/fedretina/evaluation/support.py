"""Figures with support: each grade's AUC with the patients behind it, and the mean over the grades with enough.

In the macro AUC a grade with one image counts as much as one with three hundred, so the mean follows the place of
single patients: a hospital with a rare grade looks better or worse by luck, and so does a round. Here a grade counts
only where so many patients have it, and so many have another, that no one of them decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.evaluation.metrics import auroc
from fedretina.metric_inputs import checked_scores
from fedretina.settings.training import LEAST_PATIENTS


class GradeAuc(NamedTuple):
    """The AUC of one grade against all others, and who stands behind it.

    Attributes:
        grade: The class, from 0.
        value: AUC in [0, 1]; None where all images of the split have the grade.
        images: Images of the grade, 1 or more.
        patients: Patients with an image of the grade.
        others: Patients with an image of another grade.
        supported: Whether both are so many that the grade counts in the mean.
    """

    grade: int
    value: float | None
    images: int
    patients: int
    others: int
    supported: bool


class SupportedAuc(NamedTuple):
    """The AUC of each grade that is present, and the mean of those with support.

    Attributes:
        value: Mean AUC of the grades with support, equal weights, in [0, 1]; None where none has it.
        grades: One entry a grade that is present, in order.
        least: The patients that a grade needs, with it and without it.
    """

    value: float | None
    grades: tuple[GradeAuc, ...]
    least: int

    @property
    def counted(self) -> tuple[int, ...]:
        """The grades that count in the mean."""
        return tuple(one.grade for one in self.grades if one.supported)


def supported_auc(
    scores: ArrayLike, labels: ArrayLike, patients: Sequence[str], least: int = LEAST_PATIENTS
) -> SupportedAuc:
    """Compute each grade's one-vs-rest AUC, and the mean over the grades with enough patients.

    Patients are counted and not images, since the images of a patient resemble each other: ten photographs of one
    person support nothing.

    Args:
        scores: Class scores [N, K], as for the macro AUC.
        labels: [N], 0 to K - 1.
        patients: Patient of each image [N].
        least: Patients that a grade needs, with it and without it.

    Returns:
        The figures. Where no grade has support there is no mean; who must have a figure takes the macro AUC.

    Raises:
        TrainingError: Shapes, scores or labels are unfit.
    """
    matrix, classes = checked_scores(scores, labels)
    who = np.asarray(patients, dtype=np.str_)
    found = []
    for grade in np.unique(classes).tolist():
        own = classes == grade
        having, others = people(who, own), people(who, ~own)
        supported = min(having, others) >= least
        found.append(GradeAuc(grade, auroc(matrix[:, grade], own), int(own.sum()), having, others, supported))
    values = [one.value for one in found if one.supported and one.value is not None]
    return SupportedAuc(float(np.mean(values)) if values else None, tuple(found), least)


def people(patients: NDArray[Any], of: NDArray[np.bool_]) -> int:
    """How many patients have one of the chosen images."""
    return int(np.unique(patients[of]).size)
