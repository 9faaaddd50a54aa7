"""Referable and vision-threatening disease: the grades read as one question, whether a doctor must see this eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.evaluation.metrics import auroc
from fedretina.metric_inputs import checked_scores
from fedretina.settings.scheme import GradingScheme


class ReferralTask(NamedTuple):
    """The binary task of a split, over the images that a person could grade.

    Attributes:
        kept: Which images of the split take part [N]: those whose true grade is not "ungradable".
        diseased: Whether the true grade is referable [M], M the images kept.
        score: Probability of the referable grades among the gradable ones [M], in [0, 1].
        referred: Whether the answer sends the eye to a doctor [M]: a referable grade, or ungradable.
        called: The same of all images of the split [N].
    """

    kept: NDArray[np.bool_]
    diseased: NDArray[np.bool_]
    score: NDArray[np.float64]
    referred: NDArray[np.bool_]
    called: NDArray[np.bool_]


class Referable(NamedTuple):
    """How well a split's answers find referable disease; None where a figure is undefined.

    Attributes:
        auc: AUC of the probability of the referable grades.
        sensitivity: Share of the diseased eyes that the answer refers.
        specificity: Share of the other eyes that it does not refer.
        found: Diseased and referred.
        missed: Diseased and not referred.
        alarms: Not diseased and referred.
        cleared: Not diseased and not referred.
        left_out: Images that no person could grade; they are in none of the figures.
        called_ungradable: Of `found` and `alarms`, those referred because the answer was "ungradable".
    """

    auc: float | None
    sensitivity: float | None
    specificity: float | None
    found: int
    missed: int
    alarms: int
    cleared: int
    left_out: int
    called_ungradable: int


def referral_task(probabilities: ArrayLike, labels: ArrayLike, scheme: GradingScheme) -> ReferralTask | None:
    """Read grades as a binary task.

    The decision is the answered grade itself, without a threshold of its own. An eye that the model calls
    ungradable goes to a doctor in any screening programme, so that answer counts as referred; an eye that no
    person could grade has no true answer to this question and is left out.

    Args:
        probabilities: [N, K].
        labels: [N], 0 to K - 1.
        scheme: Names the referable grades and the ungradable one.

    Returns:
        The task; None where the scheme names no referable grade.

    Raises:
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    return disease_task(probabilities, labels, scheme, scheme.referable_classes)


def threatening_task(
    probabilities: ArrayLike, labels: ArrayLike, scheme: GradingScheme, oedema: Sequence[bool | None] = ()
) -> ReferralTask | None:
    """The same for vision-threatening disease: the grades that the scheme calls so, or macular oedema where graded.

    Args:
        probabilities: [N, K].
        labels: [N], 0 to K - 1.
        scheme: Names the vision-threatening grades and the ungradable one.
        oedema: Whether each image shows macular oedema [N], None where nobody graded it; empty where nobody graded any.
            An eye with it is diseased whatever its grade, though the model's answer knows grades alone.

    Raises:
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    return disease_task(probabilities, labels, scheme, scheme.threatening_classes, oedema)


def disease_task(
    probabilities: ArrayLike,
    labels: ArrayLike,
    scheme: GradingScheme,
    grades: Sequence[int],
    besides: Sequence[bool | None] = (),
) -> ReferralTask | None:
    """Read grades as a binary task: those of a disease against the others.

    Args:
        probabilities: [N, K].
        labels: [N], 0 to K - 1.
        scheme: Names the ungradable grade.
        grades: Classes of the disease.
        besides: Whether each image shows the disease whatever its grade [N]; None where nobody has said.

    Returns:
        The task; None without grades.

    Raises:
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    if not grades:
        return None
    matrix, classes = checked_scores(probabilities, labels)
    chosen = list(grades)
    ungradable = -1 if scheme.ungradable_class is None else scheme.ungradable_class
    kept = classes != ungradable
    rows = matrix[kept]
    gradable = np.sum(np.delete(rows, ungradable, axis=1) if ungradable >= 0 else rows, axis=1)
    # Where all probability lies on "ungradable" the answer says nothing about disease.
    score = np.divide(rows[:, chosen].sum(1), gradable, out=np.full(gradable.shape, 0.5), where=gradable > 0)
    called = np.isin(matrix.argmax(1), [*chosen, ungradable])
    known = np.array([bool(one) for one in besides], dtype=np.bool_) if len(besides) else np.zeros(len(kept), np.bool_)
    return ReferralTask(
        kept=kept,
        diseased=np.isin(classes[kept], chosen) | known[kept],
        score=score,
        referred=called[kept],
        called=called,
    )


class FoundBy(NamedTuple):
    """How well a split's answers find a disease; None where a figure is undefined.

    Attributes:
        auc: AUC of the probability of the disease's grades.
        sensitivity: Share of the diseased images that the answer refers.
        specificity: Share of the other images that it does not refer.
    """

    auc: float | None
    sensitivity: float | None
    specificity: float | None


def found_by(task: ReferralTask) -> FoundBy:
    """Figures of a task."""
    ill, well = int(np.sum(task.diseased)), int(np.sum(~task.diseased))
    return FoundBy(
        auc=auroc(task.score, task.diseased),
        sensitivity=int(np.sum(task.diseased & task.referred)) / ill if ill else None,
        specificity=int(np.sum(~task.diseased & ~task.referred)) / well if well else None,
    )


def referable(probabilities: ArrayLike, labels: ArrayLike, scheme: GradingScheme) -> Referable | None:
    """Figures of `referral_task`.

    Args:
        probabilities: [N, K].
        labels: [N], 0 to K - 1.
        scheme: Names the referable grades and the ungradable one.

    Returns:
        The figures; None where the scheme names no referable grade.

    Raises:
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    task = referral_task(probabilities, labels, scheme)
    if task is None:
        return None
    answered = np.asarray(probabilities)[task.kept].argmax(1)
    ungradable = -1 if scheme.ungradable_class is None else scheme.ungradable_class
    found = int(np.sum(task.diseased & task.referred))
    missed = int(np.sum(task.diseased)) - found
    alarms = int(np.sum(~task.diseased & task.referred))
    cleared = int(np.sum(~task.diseased)) - alarms
    return Referable(
        *found_by(task),
        found=found,
        missed=missed,
        alarms=alarms,
        cleared=cleared,
        left_out=int(np.sum(~task.kept)),
        called_ungradable=int(np.sum(answered == ungradable)),
    )
