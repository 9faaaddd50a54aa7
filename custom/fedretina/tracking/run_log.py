"""A log for machines: one JSON line an event, with run, site, phase, round and attempt, and nothing that names a file.

Ordinary logs at a site may name files, since its staff needs to find them. This one is made of fields alone, so that it
may be shipped to wherever a hospital or a consortium collects its logs: the only sentences in it are those that may
leave a site anyway (`told.told`).
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedretina.errors import StateError

Event = Literal["opened", "asked", "answered", "refused", "failed", "closed", "repeated", "stopped", "completed"]


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
