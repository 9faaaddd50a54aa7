"""Settings of what follows training: fine-tuning, calibration, how the model answers, and what is written."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from fedretina.uncertainty.estimators import AucInput, EstimatorName

_STRICT = ConfigDict(frozen=True, extra="forbid")


class TuneSettings(BaseModel):
    """Fine-tuning of the chosen model at each site after the federated rounds (+FT); nothing of it leaves.

    Attributes:
        epochs: Local epochs over all parts; 0 for none.
        learning_rate: Rate; the training's own where it is not given.
    """

    model_config = _STRICT
    epochs: int = Field(default=0, ge=0, le=1000)
    learning_rate: float | None = Field(default=None, gt=0, le=10)


class CalibrationSettings(BaseModel):
    """How temperatures are found where the network has a calibrator (multi-domain temperature scaling).

    Attributes:
        ridge: lambda of the regression of a temperature on features, in units of the features' mean square.
    """

    model_config = _STRICT
    ridge: float = Field(default=1.0, gt=0, le=1e6)


class EvaluationSettings(BaseModel):
    """How a trained model answers and what its AUC is computed from.

    Attributes:
        estimator: `evidence` answers alpha/S with u = K/S, `softmax` the softmax with its entropy, both of the final
            head. Over early exits, passes of dropout or several runs: `softmax_mean` the mean softmax with its entropy,
            `softmax_disagreement` the same with what the members disagree on, which tells images of a strange kind,
            `evidence_mean` the means of alpha/S and u, `evidence_dempster` the members fused by Dempster's rule.
        auc_input: What is ranked: the expected probability alpha/S by default, since that is what the clinician
            is shown; the official FedUAA code ranks the softmax of raw logits. `answer` ranks what the estimator
            answers, as ensembles should.
        passes: Forward passes with dropout at work (MC-dropout); 1 asks once, without dropout.
    """

    model_config = _STRICT
    estimator: EstimatorName = "evidence"
    auc_input: AucInput = "expected_probability"
    passes: int = Field(default=1, ge=1, le=100)


class ReportSettings(BaseModel):
    """What is written at the end of a run beside models, cards and figures.

    Attributes:
        draws: Draws of the patient bootstrap behind each interval.
        page: Whether the HTML page is written at once; `fedretina report` writes it later from the stored record.
    """

    model_config = _STRICT
    draws: int = Field(default=1000, ge=10, le=100_000)
    page: bool = True
