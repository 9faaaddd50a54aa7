"""What an end writes for those who watch, by its own settings; a fault there costs curves, never a round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedretina.errors import SettingsError, StateError
from fedretina.settings.site import TrackingSettings
from fedretina.tracking.curves import Curves, MlflowCurves, TensorBoardCurves
from fedretina.tracking.points import Point
from fedretina.tracking.run_log import Event, RunLog

_log = logging.getLogger(__name__)


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
