"""All metrics of a split at a site, from stored logits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from fedretina.errors import TrainingError
from fedretina.evaluation.calibration import brier, ece, nll
from fedretina.evaluation.error_detection import aurc, error_detection_auroc
from fedretina.evaluation.metrics import accuracy, macro_auc, quadratic_kappa
from fedretina.settings.training import AucInput
from fedretina.uncertainty.estimators import Estimator, auc_scores
from fedretina.uncertainty.inputs import checked_scores


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

    def as_scalars(self) -> dict[str, float]:
        """The metrics by name as floats, without those that are undefined."""
        return {name: float(value) for name, value in self._asdict().items() if value is not None}


def evaluate(
    logits: Tensor,
    labels: Tensor | ArrayLike,
    estimator: Estimator,
    auc_input: AucInput = "expected_probability",
    tau: float = 0.05,
) -> Evaluation:
    """Compute every metric of a split from the network's logits.

    Args:
        logits: [N, K], or [N, M, K] of M members; N at least 1, K at least 2, any float type and device.
        labels: [N], 0 to K - 1.
        estimator: How probabilities and uncertainty are read from the logits, see `ESTIMATORS`.
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
    answer = estimator.answer(logits)
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
