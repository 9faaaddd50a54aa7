"""Figures of a run: at each hospital, and their mean over the hospitals under draws of the sets' patients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedretina.data.site_data import Split
from fedretina.evaluation.bootstrap import Column, Counts, ResampledFigures, patient_draws
from fedretina.evaluation.metrics import ece
from fedretina.evaluation.referable import ReferralTask, referral_task
from fedretina.report.text import rounded
from fedretina.seeds import derive_seed
from fedretina.settings.experiment import Experiment
from fedretina.settings.scheme import GradingScheme
from fedretina.uncertainty.estimators import auc_scores, build_estimator
from fedretina_papers.blocks.hospitals import Hospital
from fedretina_papers.blocks.plan import Figure


class Said(NamedTuple):
    """What a model says of the images of a split.

    Attributes:
        probabilities: float64 [N, K].
        uncertainty: float64 [N].
        scores: What macro AUC ranks by, float64 [N, K].
    """

    probabilities: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    scores: NDArray[np.float64]


class Measured(NamedTuple):
    """Figures of a run.

    Attributes:
        sites: By hospital its test figures; None where one is undefined.
        drawn: By figure its mean over the hospitals in each draw of patients; None where one is undefined. The same
            draws for every run over the same sets, so that differences of runs are paired.
    """

    sites: Mapping[str, Mapping[str, float | None]]
    drawn: Mapping[str, Sequence[float | None]]


def read(experiment: Experiment, logits: Tensor) -> Said:
    """Read logits as a row's settings say."""
    chosen = experiment.evaluation
    estimator = build_estimator(chosen)
    answer = estimator.predict(logits)
    scores = auc_scores(logits, chosen.auc_input, experiment.tau, estimator)
    return Said(answer.probabilities, answer.uncertainty, scores)


def measured(
    hospitals: Mapping[str, Hospital],
    said: Mapping[str, Said],
    split: str,
    figures: Sequence[Figure],
    least: int,
    resamples: int,
) -> Measured:
    """Measure a run at the hospitals that are judged.

    Args:
        hospitals: Of the draw.
        said: Of each hospital's images of the split.
        split: "test", or "val" for tuning.
        figures: Which.
        least: Images of a grade below which macro figures leave it out.
        resamples: Draws of patients; 0 for none.
    """
    sites: dict[str, dict[str, float | None]] = {}
    drawn: dict[str, list[Column]] = {name: [] for name in figures}
    draws: dict[str, Counts] = {}
    for name, hospital in hospitals.items():
        if not hospital.judged:
            continue
        part, answer = hospital.data.split(split), said[name]
        rules = _rules(answer, part, hospital.data.scheme, figures, least)
        once = np.ones((1, len(part.labels)), dtype=np.int64)
        found = rules(once)
        sites[name] = {one: _number(found[one][0]) for one in figures if one in found}
        if "ece" in figures:
            sites[name]["ece"] = rounded(ece(answer.probabilities, part.labels.numpy()))
        if resamples:
            if hospital.of not in draws:
                seed = derive_seed("block", hospital.of, split)
                draws[hospital.of] = np.concatenate(list(patient_draws(part.patients, seed, resamples)))
            for one, column in rules(draws[hospital.of]).items():
                drawn[one].append(column)
    means = {one: [_number(value) for value in _mean(columns)] for one, columns in drawn.items() if columns}
    return Measured(sites, means)


def _rules(
    said: Said, split: Split, scheme: GradingScheme, figures: Sequence[Figure], least: int
) -> Callable[[Counts], dict[str, Column]]:
    labels = split.labels.numpy()
    plain = [one for one in figures if one not in ("auc", "balanced_accuracy", "ece")]
    referral = referral_task(said.probabilities, labels, scheme)
    resampled = ResampledFigures(
        said.probabilities, labels, said.uncertainty, said.scores, said.scores, referral, only=plain
    )
    counted = [grade for grade in range(scheme.num_classes) if np.sum(labels == grade) >= least]
    right = said.probabilities.argmax(1) == labels
    ranks = [_rank(said, labels, grade) for grade in counted]

    def rules(counts: Counts) -> dict[str, Column]:
        found = dict(resampled(counts))
        if "auc" in figures and len(counted) > 1:
            found["auc"] = np.mean([one(counts)["referable_auc"] for one in ranks], axis=0)
        if "balanced_accuracy" in figures and counted:
            recalls = [
                _share(counts[:, labels == grade], right[labels == grade].astype(np.float64)) for grade in counted
            ]
            found["balanced_accuracy"] = np.mean(recalls, axis=0)
        return found

    return rules


def _rank(said: Said, labels: NDArray[np.int64], grade: int) -> ResampledFigures:
    """The AUC of a grade against the rest, as the binary task that it is."""
    there = labels == grade
    task = ReferralTask(np.ones(labels.size, dtype=bool), there, said.scores[:, grade], there, there)
    return ResampledFigures(
        said.probabilities, labels, said.uncertainty, said.scores, said.scores, task, only=("referable_auc",)
    )


def _share(counts: Counts, right: NDArray[np.float64]) -> Column:
    total = counts.sum(1)
    share: Column = np.divide(counts @ right, total, out=np.full(total.shape, np.nan), where=total > 0)
    return share


def _mean(columns: Sequence[Column]) -> Column:
    found: Column = np.mean(columns, axis=0)
    return found


def _number(value: Any) -> float | None:
    return None if not np.isfinite(value) else round(float(value), 5)
