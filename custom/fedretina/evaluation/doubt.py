"""Which doubt a site's model is used with, and whether that doubt puts wrong answers first.

Beside its estimator's u a model has a second doubt, how unlikely its own answer is, 1 - max p. On unlike sites either
may find wrong answers better (docs/doubt.md), so each model's own validation images choose. The choice stands in its
card, and card, referral and `predict` use that doubt; what a run compares, and what leaves a site, is the estimator's.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedretina.evaluation.bootstrap import Interval, ResampledFigures, patient_bootstrap
from fedretina.evaluation.figures import FigureInterval, LabelledPredictions
from fedretina.evaluation.metrics import error_detection_auroc
from fedretina.uncertainty.referral import LEAST_ERRORS, LEAST_IMAGES

Doubt = Literal["estimator", "unlikely"]
GAIN = 0.02
"""AUROC for wrong answers by which 1 - max p must be the better: less may be noise, and the row's own u is kept."""


class DoubtChoice(NamedTuple):
    """The doubt that a model is used with.

    Attributes:
        used: "estimator" for the row's own u, "unlikely" for 1 - max p.
        estimator: AUROC of the one for wrong answers on validation; None where it is undefined.
        unlikely: Of the other.
    """

    used: Doubt
    estimator: float | None
    unlikely: float | None


def doubted(answers: LabelledPredictions, used: Doubt) -> LabelledPredictions:
    """The answers with the doubt that is used in place of u."""
    if used == "estimator":
        return answers
    return answers._replace(uncertainty=1 - np.max(answers.probabilities, axis=1))


def choose_doubt(validation: LabelledPredictions, gated: bool = False) -> DoubtChoice:
    """Choose on validation: 1 - max p where it finds wrong answers better by `GAIN`, else the estimator's u.

    Args:
        validation: Answers as the estimator gives them.
        gated: Whether u says more than how unsure the model is, so that nothing may stand in its place.
    """
    wrong = validation.wrong
    found = {
        name: error_detection_auroc(doubted(validation, name).uncertainty, wrong) if len(wrong) else None
        for name in ("estimator", "unlikely")
    }
    few = len(wrong) < LEAST_IMAGES or min(int(wrong.sum()), int((~wrong).sum())) < LEAST_ERRORS
    own, other = found["estimator"], found["unlikely"]
    better = own is not None and other is not None and other >= own + GAIN
    return DoubtChoice("unlikely" if better and not few and not gated else "estimator", own, other)


def order_of(answers: LabelledPredictions, seed: int, draws: int) -> FigureInterval:
    """How well doubt puts wrong answers first: its AUROC, with an interval over patients."""
    value = error_detection_auroc(answers.uncertainty, answers.wrong) if len(answers.labels) else None
    if value is None:
        return FigureInterval(None, None, None, 0)
    p = answers.probabilities
    resampled = ResampledFigures(p, answers.labels, answers.uncertainty, p, p, None, {"error_auroc"})
    found = patient_bootstrap(resampled, list(answers.patients), seed, draws)
    interval = found.get("error_auroc", Interval(None, None, 0))
    return FigureInterval(value, interval.low, interval.high, interval.draws_used)
