"""The verdict: which of several models a site keeps, and what sharing was worth, on the same patients.

Two questions, answered by two splits. Which model is kept is asked of *validation* (`choose`). How much better one is
than another is asked of *test* (`compare`), which has chosen nothing, so that its figures promise what they say.

A model is judged by referable AUC where the scheme names referable grades, since that decides who sees a doctor and
rests on many images; macro AUC, in which a grade with three images counts as much as one with three hundred, stands in
only where there is no such question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import TrainingError
from fedretina.evaluation.bootstrap import Column, Counts, ResampledFigures, patient_bootstrap
from fedretina.evaluation.referable import referral_task
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.training import LEAST_PATIENTS

FEDERATED = "federated"
OWN = "own"
TWIN = "twin"
MAJORITY = "majority"
"""The models that a site compares: the run's, its own head on the frozen encoder, the row trained alone, and the
commonest grade of its training images as the answer to everything."""

Measure = Literal["referable_auc", "auc"]
Figure = Literal["referable_auc", "auc", "accuracy"]
Reason = Literal["better", "not_better", "too_few_patients", "undefined", "only_one"]
Outcome = Literal["gained", "lost", "untold"]

FIGURES: tuple[Figure, ...] = ("referable_auc", "auc", "accuracy")


class Answered(NamedTuple):
    """What one model answered about a split.

    Attributes:
        probabilities: float64 [N, K]; a row sums to 1.
        scores: float64 [N, K], by which the macro AUC ranks; see `auc_scores`.
    """

    probabilities: NDArray[np.float64]
    scores: NDArray[np.float64]


class Truth(NamedTuple):
    """What is true of a split, the same for every model.

    Attributes:
        labels: int64 [N], 0 to K - 1.
        patients: Patient of each image.
        scheme: The site's grades.
    """

    labels: NDArray[np.int64]
    patients: Sequence[str]
    scheme: GradingScheme

    @property
    def measure(self) -> Measure:
        """What a model is judged by."""
        return "referable_auc" if self.scheme.referable_classes else "auc"


class Choice(NamedTuple):
    """Which model is kept.

    Attributes:
        kept: Its name.
        reason: "better" or "not_better" than the federated one; else why the federated one was kept unasked.
        measure: What was compared.
        values: By name of a model, its measure on validation; None where it is undefined.
        patients: Patients of validation.
    """

    kept: str
    reason: Reason
    measure: Measure
    values: Mapping[str, float | None]
    patients: int


class Difference(NamedTuple):
    """How much more one model has of a figure than another, on the same patients.

    Attributes:
        value: First less second; None where one of them is undefined.
        low: Lower bound of the 95 % interval; None where none can be told.
        high: Upper bound; None where none can be told.
        draws_used: Draws of patients in which both figures were defined.
    """

    value: float | None
    low: float | None
    high: float | None
    draws_used: int

    @property
    def outcome(self) -> Outcome:
        """Whether the first is better ("gained"), worse ("lost"), or neither can be told: the interval holds 0."""
        if self.low is None or self.high is None:
            return "untold"
        return "gained" if self.low > 0 else "lost" if self.high < 0 else "untold"


def figures(answered: Answered, truth: Truth) -> dict[Figure, float | None]:
    """The figures by which models are compared, on a split as it is; None where one is undefined."""
    once = np.ones((1, truth.labels.size), dtype=np.int64)
    found = {name: float(column[0]) for name, column in _resampled(answered, truth)(once).items()}
    values = {name: found.get(name, np.nan) for name in FIGURES}
    return {name: None if np.isnan(value) else value for name, value in values.items()}


def choose(validation: Mapping[str, Answered], truth: Truth) -> Choice:
    """Say which model is kept, from the validation split alone.

    The one with the largest measure; the federated one of equals. It is also kept where validation has fewer than
    `LEAST_PATIENTS` patients with referable disease or without (for the macro AUC: of any two grades), since such an
    AUC follows single patients, and in general a model that more patients taught is the better guess.

    Args:
        validation: Answers by name of a model; `FEDERATED` among them.
        truth: Of the validation split.

    Raises:
        TrainingError: There is no federated model, or arrays do not fit each other.
    """
    if FEDERATED not in validation:
        raise TrainingError("a verdict needs the federated model's answers. Give them under the name 'federated'.")
    for answered in validation.values():
        _require_fit(answered, truth)
    measure = truth.measure
    values = {name: figures(answered, truth)[measure] for name, answered in validation.items()}
    defined = {name: value for name, value in values.items() if value is not None}
    reason: Reason
    best = FEDERATED
    if len(validation) == 1:
        reason = "only_one"
    elif not _enough(truth):
        reason = "too_few_patients"
    elif FEDERATED not in defined or len(defined) == 1:
        reason = "undefined"
    else:
        best = max(sorted(defined, key=lambda name: name != FEDERATED), key=lambda name: defined[name])
        reason = "not_better" if best == FEDERATED else "better"
    return Choice(best, reason, measure, values, len(set(truth.patients)))


def compare(
    first: Answered, second: Answered, truth: Truth, seed: int, draws: int, level: float = 0.95
) -> dict[Figure, Difference]:
    """Differences of all figures between two models, with intervals over the patients, the same draws for both.

    Whole patients are drawn (`evaluation.bootstrap`), and each draw asks both models about the same ones: what makes a
    set of patients easy makes it so for both, so the interval of the difference is narrower than either model's own.

    Args:
        first: Answers of one model.
        second: Answers of the other to the same images.
        truth: Of the split.
        seed: The same seed draws the same patients.
        draws: Number of draws.
        level: Share of the draws inside the interval, in (0, 1).

    Returns:
        By figure; one that the scheme does not know is missing.

    Raises:
        TrainingError: Arrays do not fit each other, or there are no images.
        SettingsError: draws or level is out of range.
    """
    _require_fit(first, truth)
    _require_fit(second, truth)
    one, two = _resampled(first, truth), _resampled(second, truth)

    def gaps(counts: Counts) -> dict[str, Column]:
        left, right = one(counts), two(counts)
        return {name: left[name] - right[name] for name in left}

    intervals = patient_bootstrap(gaps, truth.patients, seed, draws, level)
    values = figures(first, truth), figures(second, truth)
    found: dict[Figure, Difference] = {}
    for name in FIGURES:
        if name not in intervals:
            continue
        here, there = (each[name] for each in values)
        low, high, used = intervals[name]
        if here is None or there is None:
            found[name] = Difference(None, None, None, used)
        else:
            found[name] = Difference(here - there, low, high, used)
    return found


def majority(train: NDArray[np.int64], images: int, classes: int) -> Answered:
    """The answer without looking: how common each grade is among the training images; the lower of equals is answered.

    Args:
        train: Labels of the training images, at least one.
        images: Number of images to answer.
        classes: Number of grades K.
    """
    shares = np.bincount(train, minlength=classes) / train.size
    answer = np.tile(shares, (images, 1))
    return Answered(answer, answer)


def _enough(truth: Truth) -> bool:
    who = np.asarray(truth.patients, dtype=np.str_)

    def people(of: NDArray[np.bool_]) -> int:
        return int(np.unique(who[of]).size)

    if truth.measure == "referable_auc":
        ill = np.isin(truth.labels, truth.scheme.referable_classes)
        ungradable = truth.scheme.ungradable_class
        well = ~ill if ungradable is None else ~ill & (truth.labels != ungradable)
        return min(people(ill), people(well)) >= LEAST_PATIENTS
    return sum(people(truth.labels == grade) >= LEAST_PATIENTS for grade in np.unique(truth.labels)) >= 2


def _resampled(answered: Answered, truth: Truth) -> ResampledFigures:
    nothing = np.zeros(truth.labels.size)  # no figure of these reads uncertainty
    task = referral_task(answered.probabilities, truth.labels, truth.scheme)
    scores = answered.scores
    return ResampledFigures(answered.probabilities, truth.labels, nothing, scores, scores, task, only=FIGURES)


def _require_fit(answered: Answered, truth: Truth) -> None:
    images, classes = truth.labels.size, truth.scheme.num_classes
    shapes = {answered.probabilities.shape, answered.scores.shape}
    if shapes != {(images, classes)} or len(truth.patients) != images:
        raise TrainingError(
            "models are compared by their answers to the same images and grades, but the arrays differ in shape. "
            "Collect all of them from the same split."
        ).with_note(f"Shapes {sorted(shapes)}, {images} labels, {len(truth.patients)} patients, {classes} grades.")
