"""All figures of one split at a site: metrics, their intervals over patients, and what referral would mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedretina.errors import TrainingError
from fedretina.evaluation.bootstrap import (
    Interval,
    ResampledFigures,
    Share,
    exact_interval,
    grade_figure,
    patient_bootstrap,
)
from fedretina.evaluation.metrics import (
    accuracy,
    aurc,
    brier,
    ece,
    error_detection_auroc,
    macro_auc,
    nll,
    quadratic_kappa,
)
from fedretina.evaluation.referable import (
    Referable,
    ReferralTask,
    found_by,
    referable,
    referral_task,
    threatening_task,
)
from fedretina.evaluation.support import GradeAuc, supported_auc
from fedretina.metric_inputs import checked_scores
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.training import LEAST_PATIENTS
from fedretina.uncertainty.estimators import Estimator, auc_scores
from fedretina.uncertainty.promise import chance_of_disease
from fedretina.uncertainty.referral import refer

LEVEL = 0.95


class LabelledPredictions(NamedTuple):
    """Answers and truth of the same N images.

    Attributes:
        probabilities: float64 [N, K]; a row sums to 1.
        uncertainty: float64 [N]; larger means less sure.
        labels: int64 [N], 0 to K - 1.
        patients: Patient of each image; like the images it never leaves the site.
    """

    probabilities: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    labels: NDArray[np.int64]
    patients: Sequence[str]

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The grade answered, as a class [N]."""
        return np.asarray(np.argmax(self.probabilities, axis=1), dtype=np.int64)

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Whether the grade answered is not the true one [N]."""
        return np.not_equal(self.predicted, self.labels)


class Evaluation(NamedTuple):
    """Metrics of one split at one site; None where a metric is undefined on it.

    They belong to the site's own grading scheme: average them over sites, never pool the predictions.

    Attributes:
        auc: Macro one-vs-rest AUC over the classes present.
        auc_classes: Number of classes present.
        accuracy: Share of right answers.
        kappa: Cohen's kappa with quadratic weights.
        error_auroc: AUROC of the uncertainty for finding wrong answers.
        aurc: Area under the risk-coverage curve.
        ece: Expected calibration error, 15 bins.
        brier: Brier score, in [0, 2].
        nll: Negative log likelihood, in nats.
        n: Number of images.
    """

    auc: float | None
    auc_classes: int
    accuracy: float
    kappa: float | None
    error_auroc: float | None
    aurc: float
    ece: float
    brier: float
    nll: float
    n: int


def evaluate(
    logits: Tensor,
    labels: Tensor | ArrayLike,
    estimator: Estimator,
    auc_input: str = "expected_probability",
    tau: float = 0.05,
) -> Evaluation:
    """Compute every metric of a split from the network's logits.

    Args:
        logits: [N, K], or [N, M, K] of M members; N at least 1, K at least 2, any float type and device.
        labels: [N], 0 to K - 1.
        estimator: How probabilities and uncertainty are read from the logits, see `build_estimator`.
        auc_input: Scores of the AUC, see `auc_scores`. Name it in a report: the choices rank differently.
        tau: Temperature, read by the "warmed_belief" AUC alone.

    Returns:
        The evaluation.

    Raises:
        TrainingError: Logits are not finite, labels do not fit the classes, or there are no images.
        SettingsError: tau is not a finite number above 0.
    """
    broken = int((~logits.detach().isfinite()).flatten(1).any(1).sum())
    if broken:
        raise TrainingError(
            "The network gave outputs that are not finite. "
            "Lower the learning rate or train in float32, and start again from an earlier round."
        ).with_note(f"They are those for {broken} of {logits.shape[0]} images.")
    truth = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    answer = estimator.predict(logits)
    probabilities, truth = checked_scores(answer.probabilities, truth)
    predicted = probabilities.argmax(1)
    wrong = predicted != truth
    ranked = macro_auc(auc_scores(logits, auc_input, tau, estimator), truth)
    return Evaluation(
        auc=ranked.value,
        auc_classes=ranked.classes,
        accuracy=accuracy(predicted, truth),
        kappa=quadratic_kappa(predicted, truth),
        error_auroc=error_detection_auroc(answer.uncertainty, wrong),
        aurc=aurc(answer.uncertainty, wrong),
        ece=ece(probabilities, truth),
        brier=brier(probabilities, truth),
        nll=nll(probabilities, truth),
        n=int(truth.size),
    )


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


class GradeFigure(NamedTuple):
    """A grade's AUC with its interval.

    Attributes:
        counted: The AUC, and who stands behind it.
        auc: The same AUC with where it would mostly lie with other patients of the same kind.
    """

    counted: GradeAuc
    auc: FigureInterval


class SplitFigures(NamedTuple):
    """What is known of a split.

    Attributes:
        figures: By name: those of `Evaluation`, `auc_logits`, `auc_supported` (None where no grade has support), and
            `referable_*` and `threatening_*` where the scheme knows them.
        auc_classes: Grades present, over which the macro AUC is the mean.
        disease: Counts for referable disease; None where the scheme names no referable grade.
        grades: One entry a grade that is present, in order.
    """

    figures: Mapping[str, FigureInterval]
    auc_classes: int
    disease: Referable | None
    grades: tuple[GradeFigure, ...] = ()


def split_figures(
    logits: Tensor,
    labels: NDArray[np.int64],
    patients: Sequence[str],
    scheme: GradingScheme,
    *,
    estimator: Estimator,
    auc_input: str,
    tau: float,
    seed: int,
    draws: int,
    least: int = LEAST_PATIENTS,
    oedema: Sequence[bool | None] = (),
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
        least: Patients that a grade needs to count in the mean of grades with support; see `supported_auc`.
        oedema: Whether each image shows macular oedema; see `threatening_task`.

    Returns:
        The figures.

    Raises:
        TrainingError: Logits are not finite, or do not fit the labels.
        SettingsError: tau or draws is out of range.
    """
    plain = evaluate(logits, labels, estimator, auc_input, tau)
    answer = estimator.predict(logits)
    disease = referable(answer.probabilities, labels, scheme)
    task = referral_task(answer.probabilities, labels, scheme)
    values: dict[str, float | None] = {
        name: value for name, value in plain._asdict().items() if name not in ("auc_classes", "n")
    }
    values["auc_logits"] = evaluate(logits, labels, estimator, "logits_softmax", tau).auc
    scores = auc_scores(logits, auc_input, tau, estimator)
    support = supported_auc(scores, labels, patients, least)
    values["auc_supported"] = support.value
    threatening = threatening_task(answer.probabilities, labels, scheme, oedema)
    tasks = {"referable": task, "threatening": threatening}
    for kind, one in tasks.items():
        if one is not None:
            values |= {f"{kind}_{name}": value for name, value in found_by(one)._asdict().items()}
    resampled = ResampledFigures(
        answer.probabilities,
        labels,
        answer.uncertainty,
        scores,
        auc_scores(logits, "logits_softmax", tau, estimator),
        task,
        supported=support.counted,
        threatening=threatening,
    )
    intervals = patient_bootstrap(resampled, list(patients), seed, draws, LEVEL)
    people = _people(patients, tasks)
    figures = {name: with_interval(value, intervals.get(name), people.get(name)) for name, value in values.items()}
    grades = tuple(
        GradeFigure(one, with_interval(one.value, intervals.get(grade_figure(one.grade)))) for one in support.grades
    )
    return SplitFigures(figures, plain.auc_classes, disease, grades)


def with_interval(value: float | None, interval: Interval | None, people: int | None = None) -> FigureInterval:
    """A figure with its interval; of a share of none or of all, the exact one over its patients.

    Args:
        value: The figure; None where it is undefined.
        interval: From draws of patients; None where there is none.
        people: Patients behind a figure that is a share; None for others.
    """
    interval = interval or Interval(None, None, 0)
    if value in (0, 1) and people is not None:
        share = exact_interval(people if value == 1 else 0, people)
        interval = interval if share is None else interval._replace(low=share.low, high=share.high)
    bounds = (None, None) if value is None else (interval.low, interval.high)
    return FigureInterval(value, *bounds, interval.draws_used)


def _people(patients: Sequence[str], tasks: Mapping[str, ReferralTask | None]) -> dict[str, int]:
    """Patients behind each figure that is a share."""
    who = np.asarray(patients, dtype=np.str_)
    found = {"accuracy": np.unique(who).size}
    for name, task in tasks.items():
        if task is not None:
            kept = who[task.kept]
            found[f"{name}_sensitivity"] = np.unique(kept[task.diseased]).size
            found[f"{name}_specificity"] = np.unique(kept[~task.diseased]).size
    return found


class Triage(NamedTuple):
    """Figures over patients, each with its exact 95 % interval; None where there is nobody to count.

    Attributes:
        load: Patients referred, of all.
        doubt_load: Patients referred for doubt alone, of all: what the uncertainty costs.
        missed: Ill patients not referred, of the ill.
        sensitivity: Ill patients referred, of the ill.
        specificity: Patients not referred, of those without referable disease whose images could all be graded.
        gated_load: Patients referred, or with an image that the gate stops or calls unusual, of all.
        answered_load: Patients referred, of those all of whose images the gate lets be answered.
    """

    load: Share | None
    doubt_load: Share | None
    missed: Share | None
    sensitivity: Share | None
    specificity: Share | None
    gated_load: Share | None = None
    answered_load: Share | None = None


def triage(
    labelled: LabelledPredictions,
    threshold: float,
    scheme: GradingScheme,
    promise: float | None = None,
    odd: NDArray[np.bool_] | None = None,
    silent: NDArray[np.bool_] | None = None,
) -> Triage:
    """Apply the referral rule to a split and count patients.

    A patient is referred when any image is, and ill when any image's true grade is referable. Patients and not images
    are counted: a person is sent to the doctor, not an eye, and the two eyes of a person resemble each other, so an
    interval over eyes would be too narrow. A patient with an image that no person could grade is not known to be
    healthy and does not count towards the specificity.

    Ask it of the test split with the threshold of the validation split. The threshold was chosen to look well on
    validation, and so was the round of the model: figures from there would promise too much. Test has decided
    nothing. The load holds for patients as in that split; where more are ill, more are referred.

    Args:
        labelled: Answers and truth of the split; may be empty.
        threshold: A `ReferralThreshold.value`.
        scheme: Names the referable grades and the ungradable one. Without referable grades nobody is known to be
            ill, and only the loads are told.
        promise: A `promise.Promise.threshold`; None where no chance of disease refers by itself.
        odd: Whether the gate stops an image or calls it unusual [N]; None where there is no gate.
        silent: Whether the gate lets no answer to an image be shown [N]; None where there is no gate.

    Returns:
        The figures; all but `gated_load` and `answered_load` are of the rule alone.

    Raises:
        TrainingError: The arrays differ in length.
    """
    sizes = {len(labelled.probabilities), len(labelled.uncertainty), len(labelled.labels), len(labelled.patients)}
    if len(sizes) != 1:
        raise TrainingError(
            "triage needs one answer, label and patient per image, but got more of one than of another. Collect all of "
            "them from the same split."
        ).with_note(f"Their lengths are {sorted(sizes)}.")
    reasons: dict[str, set[str]] = {}
    truths: dict[str, set[int]] = {}
    some = len(labelled.labels) > 0
    predicted = np.argmax(labelled.probabilities, axis=1) if some else ()
    chances = chance_of_disease(labelled.probabilities, scheme) if some else ()
    for patient, grade, u, label, chance in zip(
        labelled.patients, predicted, labelled.uncertainty, labelled.labels, chances, strict=True
    ):
        decision = refer(int(grade), float(u), threshold, scheme, float(chance), promise)
        reasons.setdefault(patient, set()).update(decision.reasons)
        truths.setdefault(patient, set()).add(int(label))
    sick = set(scheme.referable_classes)
    ill = {patient for patient, grades in truths.items() if grades & sick}
    well = {patient for patient, grades in truths.items() if not grades & (sick | {scheme.ungradable_class})}
    referred = {patient for patient, why in reasons.items() if why}
    doubted = {patient for patient, why in reasons.items() if why == {"doubtful"}}
    everyone = len(reasons)
    gated = None
    if odd is not None:
        gated = referred | {patient for patient, one in zip(labelled.patients, odd, strict=True) if one}
    answered = None
    if silent is not None:
        answered = reasons.keys() - {patient for patient, one in zip(labelled.patients, silent, strict=True) if one}
    return Triage(
        load=exact_interval(len(referred), everyone),
        doubt_load=exact_interval(len(doubted), everyone),
        missed=exact_interval(len(ill - referred), len(ill)),
        sensitivity=exact_interval(len(ill & referred), len(ill)),
        specificity=exact_interval(len(well - referred), len(well)) if sick else None,
        gated_load=None if gated is None else exact_interval(len(gated), everyone),
        answered_load=None if answered is None else exact_interval(len(referred & answered), len(answered)),
    )
