"""What an end writes for those who watch, by its own settings; a fault there costs curves, never a round."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedretina.errors import SettingsError, StateError
from fedretina.settings.site import TrackingSettings
from fedretina.tracking.curves import Curves, MlflowCurves, Point, TensorBoardCurves, WandbCurves

_log = logging.getLogger(__name__)
Event = Literal["opened", "asked", "answered", "refused", "failed", "closed", "repeated", "stopped", "completed"]


class Tracker:
    """Curves and log lines of one end in one run.

    Args:
        settings: The end's own.
        folder: Its folder of the run.
        run: Name of the run.
        end: `server`, or the site's name.
        experiment: Name of the experiment.

    Raises:
        SettingsError: An extra that the settings ask for is not installed.
    """

    def __init__(self, settings: TrackingSettings, folder: Path, run: str, end: str, experiment: str) -> None:
        self._lines = RunLog(folder / "log.jsonl", run, end) if settings.log else None
        self._curves: list[Curves] = []
        uri = settings.mlflow
        if settings.tensorboard:
            self._open(lambda: TensorBoardCurves(folder / "tensorboard"))
        if uri is not None:
            self._open(lambda: MlflowCurves(uri, experiment, f"{run}/{end}"))
        if settings.wandb:
            self._open(lambda: WandbCurves(folder / "wandb", experiment, f"{run}/{end}"))

    def note(self, event: Event, where: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Write one log line; see `RunLog.note`."""
        if self._lines is None:
            return
        try:
            self._lines.note(event, where, **fields)
        except StateError as error:
            _log.warning("%s", error)

    def follow(self, steps: Callable[[], Sequence[Sequence[Point]]]) -> None:
        """Bring the curves up to date."""
        for curves in self._curves:
            self._guarded(lambda curves=curves: curves.follow(steps()))  # type: ignore[misc]

    def close(self) -> None:
        """Finish the curves."""
        for curves in self._curves:
            self._guarded(curves.close)
        self._curves = []

    def _open(self, build: Callable[[], Curves]) -> None:
        def keep() -> None:
            self._curves.append(build())

        self._guarded(keep)

    @staticmethod
    def _guarded(write: Callable[[], None]) -> None:
        try:
            write()
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001 - a full disk or a tracking server that is away must not end a round
            _log.warning("curves are not up to date: %s: %s", type(error).__name__, error)


# Ordinary logs at a site may name files, since its staff needs to find them. This one is made of fields alone, so
# that it may be shipped to wherever a hospital or a consortium collects its logs: the only sentences in it are those
# that may leave a site anyway (`told.told`).


class RunLog:
    """Appends to `log.jsonl` in an end's folder of a run.

    Args:
        path: The file.
        run: Name of the run.
        end: `server`, or the site's name.
    """

    def __init__(self, path: Path, run: str, end: str) -> None:
        self._path = path
        self._fixed = {"run": run, "end": end}

    def note(self, event: Event, where: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Append one line.

        Args:
            event: What happened.
            where: Phase, round and attempt, where the event belongs to a step.
            fields: Site, seconds, counts; `why` is a sentence that may leave a site.

        Raises:
            StateError: The line cannot be written.
        """
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "event": event, **self._fixed, **(where or {}), **fields}
        data = (json.dumps(line) + "\n").encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab", buffering=0) as handle:
                start = handle.tell()
                try:
                    written = handle.write(data)
                    if written != len(data):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError:
                    handle.truncate(start)  # what reads the log line by line shall not stumble over half a line
                    raise
        except OSError as error:
            raise StateError(f"{self._path} cannot be written ({error}): make room.") from error
