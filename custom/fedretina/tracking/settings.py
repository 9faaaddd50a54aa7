"""What an end of the federation writes down for those who watch it; each end decides for itself."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TrackingSettings(BaseModel):
    """Curves and log lines of this end's own; a job cannot ask for them.

    Attributes:
        tensorboard: Whether curves go to `tensorboard/` in the run's folder; needs the extra `tensorboard`.
        mlflow: Where MLflow keeps its runs, a tracking URI such as `sqlite:////srv/fedretina/mlflow.db`; needs the
            extra `mlflow`. None for no MLflow.
        log: Whether `log.jsonl` in the run's folder gets a line for every step: run, site, phase, round, attempt, what
            happened. No line holds a path, a file's name or a patient.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    tensorboard: bool = False
    mlflow: str | None = None
    log: bool = False
