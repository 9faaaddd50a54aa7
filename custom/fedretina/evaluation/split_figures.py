"""All figures of one split with their intervals over patients, and referable disease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedretina.evaluation.bootstrap import Interval, patient_bootstrap_counts
from fedretina.evaluation.evaluate import evaluate
from fedretina.evaluation.exact_interval import exact_interval
from fedretina.evaluation.referable import Referable, ReferralTask, referable, referral_task
from fedretina.evaluation.resampled import ResampledFigures
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.training import AucInput
from fedretina.uncertainty.estimators import Estimator, auc_scores

LEVEL = 0.95


class FigureInterval(NamedTuple):
    """A figure and where it would mostly lie with other patients of the same kind.

    Attributes:
        value: The figure; None where it is undefined.
        low: Lower bound; None where no interval can be told.
        high: Upper bound; None where no interval can be told.
        draws_used: Draws of the bootstrap in which the figure was defined.
    """

    value: float | None
    low: float | None
    high: float | None
    draws_used: int


class SplitFigures(NamedTuple):
    """What is known of a split.

    Attributes:
        figures: By name: those of `Evaluation`, `auc_logits`, and `referable_*` where the scheme knows them.
        auc_classes: Grades present, over which the macro AUC is the mean.
        disease: Counts for referable disease; None where the scheme names no referable grade.
    """

    figures: Mapping[str, FigureInterval]
    auc_classes: int
    disease: Referable | None


def split_figures(
    logits: Tensor,
    labels: NDArray[np.int64],
    patients: Sequence[str],
    scheme: GradingScheme,
    *,
    estimator: Estimator,
    auc_input: AucInput,
    tau: float,
    seed: int,
    draws: int,
) -> SplitFigures:
    """Compute every figure of a split, with percentile intervals over its patients.

    A share of none or of all is the same in every draw, which would be an interval without width. It has the exact
    interval over patients instead: 20 of 20 patients right may still be a model that errs on one in six.

    Args:
        logits: [N, K], or [N, M, K] of M members; N at least 1.
        labels: [N].
        patients: Patient of each image [N].
        scheme: The site's grades.
        estimator: How probabilities and uncertainty are read from the logits.
        auc_input: Scores of the macro AUC, see `auc_scores`.
        tau: Temperature, read by the "warmed_belief" AUC alone.
        seed: Of the draws.
        draws: Number of draws.

    Returns:
        The figures.

    Raises:
        TrainingError: Logits are not finite, or do not fit the labels.
        SettingsError: tau or draws is out of range.
    """
    plain = evaluate(logits, labels, estimator, auc_input, tau)
    answer = estimator.answer(logits)
    disease = referable(answer.probabilities, labels, scheme)
    task = referral_task(answer.probabilities, labels, scheme)
    values: dict[str, float | None] = {
        name: value for name, value in plain._asdict().items() if name not in ("auc_classes", "n")
    }
    values["auc_logits"] = evaluate(logits, labels, estimator, "logits_softmax", tau).auc
    if disease is not None:
        values |= {f"referable_{name}": getattr(disease, name) for name in ("auc", "sensitivity", "specificity")}
    resampled = ResampledFigures(
        answer.probabilities,
        labels,
        answer.uncertainty,
        auc_scores(logits, auc_input, tau, estimator),
        auc_scores(logits, "logits_softmax", tau, estimator),
        task,
    )
    intervals = patient_bootstrap_counts(resampled, list(patients), seed, draws, LEVEL)
    people = _people(patients, task)
    figures = {}
    for name, value in values.items():
        interval = intervals.get(name, Interval(None, None, 0))
        if value in (0, 1) and name in people:
            share = exact_interval(people[name] if value == 1 else 0, people[name])
            interval = interval if share is None else interval._replace(low=share.low, high=share.high)
        bounds = (None, None) if value is None else (interval.low, interval.high)
        figures[name] = FigureInterval(value, *bounds, interval.draws_used)
    return SplitFigures(figures, plain.auc_classes, disease)


def _people(patients: Sequence[str], task: ReferralTask | None) -> dict[str, int]:
    """Patients behind each figure that is a share."""
    who = np.asarray(patients, dtype=np.str_)
    found = {"accuracy": np.unique(who).size}
    if task is not None:
        kept = who[task.kept]
        found["referable_sensitivity"] = np.unique(kept[task.diseased]).size
        found["referable_specificity"] = np.unique(kept[~task.diseased]).size
    return found
