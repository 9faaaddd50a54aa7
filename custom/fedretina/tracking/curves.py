"""Curves of a run, kept up with its durable records: written again from the start, they stand there once.

At the server they show only what sites let go, at a site its own history.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedretina.errors import SettingsError, StateError

_STEPS_TAG = "fedretina.steps"
_RUN_TAG = "fedretina.run"
_AT_ONCE = 1000
_INSTALL = {
    "tensorboard": 'pip install "tensorboard>=2.19"',
    "mlflow": 'pip install "mlflow-skinny>=3" "sqlalchemy>=2" "alembic>=1.13"',
    "wandb": 'pip install "wandb>=0.31,<0.32"',
}
_PACKAGES = Path(__file__).resolve().parents[2]
_PATIENCE_S = 60.0


class Point(NamedTuple):
    """One value on one curve.

    Attributes:
        name: Name of the curve, `figure/whose`.
        step: Number of the step in the run.
        value: The value.
    """

    name: str
    step: int
    value: float


def server_points(records: Sequence[Mapping[str, Any]]) -> list[list[Point]]:
    """Points by step from the records of a run: scalars and weights per site, bytes, and how many took part.

    Args:
        records: Records of the steps that are done, in order.
    """
    return [list(_of_record(number, record)) for number, record in enumerate(records)]


def site_points(history: Mapping[int, Mapping[str, Any]]) -> list[list[Point]]:
    """Points by step from what a site remembers of each; a figure that is no number makes none.

    Args:
        history: Entries by number of the step (`History.numbered`).
    """
    return [
        [Point(name, number, float(value)) for name, value in _flat(history[number]) if not isinstance(value, bool)]
        for number in sorted(history)
    ]


def _of_record(number: int, record: Mapping[str, Any]) -> Iterator[Point]:
    task = record["task"]
    for site, scalars in record["scalars"].items():
        for name, value in scalars.items():
            yield Point(f"{task}/{name}/{site}", number, float(value))
    for site, weight in record.get("weights", {}).items():
        yield Point(f"{task}/weight/{site}", number, float(weight))
    yield Point("run/sites_accepted", number, float(len(record["scalars"])))
    yield Point("run/sites_refused", number, float(len(record["refused"])))
    yield Point("run/bytes_up", number, float(sum(record["bytes_up"].values())))


def _flat(entry: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in entry.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value


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

    What was sent cannot be taken back. So a run that goes back to an earlier step has a fresh MLflow run from then on,
    with all of its steps; the one before keeps what was dropped, under a name that says so.

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
        self._place = place
        self._run = run
        known = self._client.search_runs([place], f"tags.`{_RUN_TAG}` = '{run}'", max_results=1)
        self._id = known[0].info.run_id if known else self._begun()
        self._written = int(known[0].data.tags.get(_STEPS_TAG, 0)) if known else 0

    def follow(self, steps: Sequence[Sequence[Point]]) -> None:
        """Send what is new."""
        from mlflow.entities import Metric

        if len(steps) < self._written:
            self._leave()
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

    def _begun(self) -> str:
        return str(self._client.create_run(self._place, run_name=self._run, tags={_RUN_TAG: self._run}).info.run_id)

    def _leave(self) -> None:
        """Begin anew, and let the run before be found by its name alone: a kill in between leaves one with the tag."""
        before, self._id = self._id, self._begun()
        self._written = 0
        self._client.update_run(before, name=f"{self._run}, before it went back")
        self._client.set_tag(before, _RUN_TAG, "")
        self._client.set_terminated(before)


class WandbCurves:
    """An offline run of Weights & Biases in a folder of the run's own, written by a process of its own.

    Nothing is sent. Like TensorBoard's, its files are written again from the run's records by a process that goes on
    with a run; W&B's id of the run stays.

    Args:
        folder: The folder; what it holds is replaced.
        project: W&B's project.
        run: Name of the run at this end.

    Raises:
        SettingsError: The extra is not installed.
    """

    def __init__(self, folder: Path, project: str, run: str) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise _absent("wandb")
        # W&B's own process outlives this one's kill for a while, and goes on writing where its folder is then.
        before = folder.with_name(f".{folder.name}.before")
        shutil.rmtree(before, ignore_errors=True)
        if folder.exists():
            folder.rename(before)
            shutil.rmtree(before, ignore_errors=True)
        folder.mkdir(parents=True)
        self._log = folder / "log.txt"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        places = {f"WANDB_{what}_DIR": str(folder / what.lower()) for what in ("CACHE", "CONFIG", "DATA")}
        path = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH")]))
        words = [str(folder.parent), project, run, hashlib.sha256(run.encode()).hexdigest()[:16]]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fedretina.tracking.wandb_writer", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**kept, **places, "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "PYTHONPATH": path},
            )
        self._written = 0

    def follow(self, steps: Sequence[Sequence[Point]]) -> None:
        """Pass on what is new; it is written while the run goes on."""
        assert self._process.stdin is not None
        self._require_alive()
        for number, points in enumerate(steps[self._written :], self._written):
            line = {"step": number, "values": {point.name: point.value for point in points}}
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
            self._written = number + 1

    def close(self) -> None:
        """Wait until all is written.

        Raises:
            StateError: W&B's process failed, or did not end in a minute.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise StateError(f"W&B's process did not end in {_PATIENCE_S:.0f} s: see {self._log}.") from None
        finally:
            self._process.kill()
            self._process.wait()
        self._require_alive()

    def _require_alive(self) -> None:
        if self._process.poll():
            raise StateError(f"W&B's process ended with code {self._process.returncode}: {self._log} says why.")


def _absent(extra: str) -> SettingsError:
    return SettingsError(
        f"tracking.{extra} is set, and what it needs is not installed here: run `{_INSTALL[extra]}`, or unset it."
    )
