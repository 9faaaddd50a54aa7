"""What an end notes of its running step in the folder of the run, for the page that shows how the end is."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedretina.errors import StateError
from fedretina.storage import read_json, write_json

LAST_STEP = "last_step.json"
"""Name of the record, in an end's folder of a run."""
_FAULTS = 5

_log = logging.getLogger(__name__)


class LastStep:
    """Keeps one small record up to date; one that cannot be written is a warning in the log, never a lost round.

    Args:
        folder: The end's folder of the run.
        run: Name of the run.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._path = folder / LAST_STEP
        self._warned = False
        self._record: dict[str, Any] = {**_kept(self._path), "run": run}

    def note(self, **fields: Any) -> None:
        """Write the record with some of its fields anew.

        Args:
            fields: Plain values. `fault`, a sentence that may leave a site, is put before the last five faults.
        """
        fault, now = fields.pop("fault", None), round(time.time(), 1)
        faults = self._record.get("faults", [])
        if fault:
            faults = [{"time": now, "words": str(fault)}, *faults][:_FAULTS]
        self._record |= {**fields, "faults": faults, "time": now}
        try:
            write_json(self._path, self._record, durable=False)
            self._warned = False
        except (StateError, ValueError, TypeError) as error:
            if not self._warned:
                _log.warning("the page of this end will be behind: %s", error)
            self._warned = True


def read_last_step(folder: Path) -> Mapping[str, Any] | None:
    """The record of a run; None where there is none that can be read."""
    return _kept(folder / LAST_STEP) or None


def _kept(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except StateError:
        return {}
