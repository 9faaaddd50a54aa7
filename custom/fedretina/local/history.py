"""What a site remembers of each round for its own report: theta, weight, loss, and how the aggregate did at home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedretina.settings.plan import Step
from fedretina.storage import read_json, set_aside, write_json


class History:
    """Figures by step under one file; noted twice, they stand there once.

    Args:
        path: The file, in the site's own folder of the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: dict[str, dict[str, Any]] = read_json(path) if path.exists() else {}

    def note(self, step: Step, **figures: Any) -> None:
        """Add figures to a step; durable when it returns.

        Raises:
            StateError: The file cannot be written.
        """
        key = f"{step.number:05d}"
        entry = {"step": step.name, **self._steps.get(key, {}), **figures}
        if self._steps.get(key) != entry:
            steps = {**self._steps, key: entry}
            write_json(self._path, steps)
            self._steps = steps

    def go_back(self, step: int, aside: Path) -> None:
        """Forget a step and all after it; the file as it was is kept in a folder.

        Raises:
            StateError: The file cannot be written.
        """
        steps = {key: entry for key, entry in self._steps.items() if int(key) < step}
        if steps != self._steps:
            set_aside([self._path], aside)
            write_json(self._path, steps)
            self._steps = steps

    def own_after(self, step: int) -> list[int]:
        """Steps after this one of which a round of the site's own is noted, in order."""
        return sorted(int(key) for key, entry in self._steps.items() if int(key) > step and "weight" in entry)

    def steps(self) -> list[dict[str, Any]]:
        """The entries in the order of the run, each with the name of its `step`."""
        return [dict(self._steps[key]) for key in sorted(self._steps)]

    def numbered(self) -> dict[int, dict[str, Any]]:
        """The entries by number of their step."""
        return {int(key): dict(entry) for key, entry in self._steps.items()}
