"""What a run moved between the server and its sites, from its stored results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Moved(NamedTuple):
    """Bytes of tensors; names, stamps and scalars, some kB a message, are not counted.

    Attributes:
        up: From the sites.
        down: To the sites.
    """

    up: int
    down: int

    @property
    def both(self) -> int:
        """Up and down together."""
        return self.up + self.down


def moving_steps(results: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """What is told of every step that moved anything: of those in `steps`, and of `finalise`, which stands in `end`.

    Results of an older version have no `end`: of them what went down in `finalise` is not known.

    Args:
        results: As stored in `results.json`.
    """
    end = results.get("end")
    return (*results["steps"], *(() if end is None else (end,)))


def step_moved(step: Mapping[str, Any]) -> Moved:
    """What a step moved; a site whose answer did not count had its order, and the model with it.

    Args:
        step: One of `moving_steps`.
    """
    up = step.get("bytes_up", {})
    asked = {*step.get("scalars", {}), *step.get("refused", {}), *up}
    return Moved(sum(up.values()), step.get("bytes_down", 0) * len(asked))


def run_moved(results: Mapping[str, Any]) -> Moved:
    """What all steps of a run moved.

    Args:
        results: As stored in `results.json`.
    """
    each = [step_moved(step) for step in moving_steps(results)]
    return Moved(sum(one.up for one in each), sum(one.down for one in each))
