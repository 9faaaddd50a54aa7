"""Curves of a run, kept up with its durable records: written again from the start, they stand there once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fedretina.errors import SettingsError
from fedretina.tracking.points import Point

_STEPS_TAG = "fedretina.steps"
_RUN_TAG = "fedretina.run"
_AT_ONCE = 1000
_INSTALL = {
    "tensorboard": 'pip install "tensorboard>=2.19"',
    "mlflow": 'pip install "mlflow-skinny>=3" "sqlalchemy>=2" "alembic>=1.13"',
}


class Curves(Protocol):
    """A place where curves are kept."""

    def follow(self, steps: Sequence[Sequence[Point]]) -> None:
        """Write the points of those steps that are not there yet.

        Args:
            steps: Points of every step so far.
        """
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class TensorBoardCurves:
    """Event files in a folder of the run's own.

    A process that goes on with a run writes the curves again from the run's records, so that no point is lost or
    doubled, wherever the process before it died.

    Args:
        folder: The folder; what event files it holds are replaced.

    Raises:
        SettingsError: The extra is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _absent("tensorboard") from error
        shutil.rmtree(folder, ignore_errors=True)
        self._writer: Any = SummaryWriter(str(folder))
        self._written = 0

    def follow(self, steps: Sequence[Sequence[Point]]) -> None:
        """Write what is new and flush it."""
        for points in steps[self._written :]:
            for point in points:
                self._writer.add_scalar(point.name, point.value, point.step)
        self._written = len(steps)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class MlflowCurves:
    """Metrics of one MLflow run, found again by its tags; how many steps it has is a tag too.

    Args:
        uri: MLflow's tracking URI.
        experiment: MLflow's experiment, made when it is missing.
        run: Name of the run at this end.

    Raises:
        SettingsError: The extra is not installed.
    """

    def __init__(self, uri: str, experiment: str, run: str) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise _absent("mlflow") from error
        self._client: Any = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        place = self._client.create_experiment(experiment) if found is None else found.experiment_id
        known = self._client.search_runs([place], f"tags.`{_RUN_TAG}` = '{run}'", max_results=1)
        if known:
            self._id = known[0].info.run_id
            self._written = int(known[0].data.tags.get(_STEPS_TAG, 0))
        else:
            self._id = self._client.create_run(place, run_name=run, tags={_RUN_TAG: run}).info.run_id
            self._written = 0

    def follow(self, steps: Sequence[Sequence[Point]]) -> None:
        """Send what is new."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for number, points in enumerate(steps[self._written :], self._written):
            metrics = [Metric(point.name, point.value, now, point.step) for point in points]
            for begin in range(0, len(metrics), _AT_ONCE):
                self._client.log_batch(self._id, metrics=metrics[begin : begin + _AT_ONCE])
            self._client.set_tag(self._id, _STEPS_TAG, str(number + 1))
            self._written = number + 1

    def close(self) -> None:
        """Say that this process is done with it."""
        self._client.set_terminated(self._id)


def _absent(extra: str) -> SettingsError:
    return SettingsError(
        f"tracking.{extra} is set, and what it needs is not installed here: run `{_INSTALL[extra]}`, or unset it."
    )
