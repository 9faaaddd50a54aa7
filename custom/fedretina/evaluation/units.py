"""The same question asked of images, eyes and patients: what is found and missed, and who gets no grade at all.

A screening programme refers patients, a device is approved by eyes, and a network answers photographs. The three
differ: of a patient with one ill eye, three of four photographs may be answered rightly and the person still be missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.evaluation.bootstrap import (
    Counts,
    Share,
    auroc_rule,
    exact_interval,
    patient_bootstrap,
    share_rule,
)
from fedretina.evaluation.figures import LEVEL, FigureInterval, LabelledPredictions, with_interval
from fedretina.evaluation.metrics import auroc
from fedretina.evaluation.referable import ReferralTask
from fedretina.settings.scheme import GradingScheme

Unit = Literal["image", "eye", "patient"]
UNITS: tuple[Unit, ...] = ("image", "eye", "patient")


class Owners(NamedTuple):
    """Whose image each one is.

    Attributes:
        patients: Patient of each image [N].
        eyes: "left", "right" or, where it is not known, "" [N].
    """

    patients: Sequence[str]
    eyes: Sequence[str]

    def of(self, unit: Unit) -> NDArray[np.int64]:
        """Number of the unit that each image belongs to [N], from 0; -1 where its eye is not known."""
        if unit == "image":
            return np.arange(len(self.patients), dtype=np.int64)
        patients = np.unique(np.asarray(self.patients, dtype=np.str_), return_inverse=True)[1].astype(np.int64)
        if unit == "patient":
            return patients
        sides = np.array([("", "left", "right").index(eye) for eye in self.eyes], dtype=np.int64)
        found = np.full(len(patients), -1, dtype=np.int64)
        known = sides > 0
        found[known] = np.unique(patients[known] * 2 + sides[known] - 1, return_inverse=True)[1]
        return found


class DiseaseFigures(NamedTuple):
    """How well the answered grades find a disease, in one kind of unit.

    Attributes:
        found: Diseased units that are referred.
        missed: Diseased units that are not.
        alarms: Units without the disease that are referred.
        cleared: Units without it that are not.
        ill_patients: Patients of the diseased units.
        well_patients: Patients of the others.
        auc: AUC of the probability of the disease's grades, of a unit the largest of its images'.
        sensitivity: Found of the diseased.
        specificity: Cleared of the others.
    """

    found: int
    missed: int
    alarms: int
    cleared: int
    ill_patients: int
    well_patients: int
    auc: FigureInterval
    sensitivity: FigureInterval
    specificity: FigureInterval


def disease_by_unit(task: ReferralTask, owners: Owners, unit: Unit, seed: int, draws: int) -> DiseaseFigures:
    """Count units: diseased where any of its images is, and referred where any of its images is by its grade.

    A unit with an image that no person could grade, and no diseased one, is not known to be without the disease and
    does not count.

    Args:
        task: The disease, over the images of a split.
        owners: Whose they are; images whose eye is not known have no part in the figures of eyes.
        unit: What is counted.
        seed: Of the draws of patients.
        draws: Their number.
    """
    units = owners.of(unit)
    size = int(units.max(initial=-1)) + 1
    ill, open_, referred = (np.zeros(size, dtype=np.bool_) for _ in range(3))
    score = np.full(size, -np.inf)
    kept = units[task.kept]
    here = kept >= 0
    np.logical_or.at(ill, kept[here], task.diseased[here])
    np.logical_or.at(referred, units[units >= 0], task.called[units >= 0])
    np.maximum.at(score, kept[here], task.score[here])
    left_out = units[~task.kept]
    open_[left_out[left_out >= 0]] = True
    chosen = np.flatnonzero((ill | ~open_) & np.isfinite(score))
    ill, referred, score = ill[chosen], referred[chosen], score[chosen]
    who = np.empty(size, dtype=object)
    for number, patient in zip(units.tolist(), owners.patients, strict=True):
        if number >= 0:
            who[number] = patient
    names = [str(name) for name in who[chosen]]
    found, missed = int(np.sum(ill & referred)), int(np.sum(ill & ~referred))
    alarms, cleared = int(np.sum(~ill & referred)), int(np.sum(~ill & ~referred))
    people = {kind: len({name for name, one in zip(names, ill, strict=True) if one == kind}) for kind in (True, False)}
    values = {
        "auc": auroc(score, ill),
        "sensitivity": found / (found + missed) if found + missed else None,
        "specificity": cleared / (cleared + alarms) if cleared + alarms else None,
    }
    everything = np.ones(len(names), dtype=np.bool_)
    rules = {
        "auc": auroc_rule(score, ill),
        "sensitivity": share_rule(everything, ill, referred),
        "specificity": share_rule(everything, ~ill, ~referred),
    }

    def resampled(counts: Counts) -> dict[str, NDArray[np.float64]]:
        return {name: rule(counts) for name, rule in rules.items() if values[name] is not None}

    intervals = patient_bootstrap(resampled, names, seed, draws, LEVEL) if names else {}
    behind = {"sensitivity": people[True], "specificity": people[False]}
    figures = {name: with_interval(value, intervals.get(name), behind.get(name)) for name, value in values.items()}
    return DiseaseFigures(found, missed, alarms, cleared, people[True], people[False], **figures)


class Part(NamedTuple):
    """How many, of how many; without an interval, for these resemble each other where they are one person's."""

    k: int
    n: int


class Ungradable(NamedTuple):
    """Who gets no grade from the model.

    Attributes:
        images: Images without one: the answer is "ungradable", or the gate lets no answer be shown.
        eyes: Eyes without one, of those known: none of an eye's photographs has a grade.
        patients: Patients with such an image, with the exact interval.
        unread: Of the images that no person could grade, those that the model gives none either; None where the scheme
            has no grade for them.
    """

    images: Part
    eyes: Part
    patients: Share | None
    unread: Part | None


def ungradable(
    answers: LabelledPredictions, owners: Owners, scheme: GradingScheme, silent: NDArray[np.bool_]
) -> Ungradable:
    """Count who gets no grade.

    Args:
        answers: Answers and truth of the split.
        owners: Whose images they are.
        scheme: Names the ungradable grade.
        silent: Whether the gate lets no answer of the image be shown [N].
    """
    grade = -1 if scheme.ungradable_class is None else scheme.ungradable_class
    without = (answers.predicted == grade) | silent
    nobody = answers.labels == grade
    eyes, patients = owners.of("eye"), owners.of("patient")
    known = np.unique(eyes[eyes >= 0])
    graded = np.unique(eyes[~without & (eyes >= 0)])
    return Ungradable(
        images=Part(int(without.sum()), len(without)),
        eyes=Part(len(known) - len(graded), len(known)),
        patients=exact_interval(len(np.unique(patients[without])), len(np.unique(patients))),
        unread=None if grade < 0 else Part(int((without & nobody).sum()), int(nobody.sum())),
    )
