"""What a run did on its way: bytes by phase, and each round's loss and accuracy over the sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedretina.exchange.moved import moving_steps, step_moved
from fedretina.local.site_state import read_history


def moved_by_phase(results: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Bytes up and down by phase, over all its rounds and sites, as the server counted them.

    What validation and the end of a run moved stands under their own names.

    Args:
        results: As stored in `results.json`.
    """
    found: dict[str, dict[str, int]] = {}
    for step in moving_steps(results):
        sums = found.setdefault(str(step["step"]).rpartition("-")[0], {"up": 0, "down": 0})
        moved = step_moved(step)
        sums["up"] += moved.up
        sums["down"] += moved.down
    return found


def rounds_of_sites(folder: Path, sites: Sequence[str]) -> list[dict[str, Any]]:
    """Each round that learned: its phase, the mean loss of the sites, and their mean validation accuracy.

    The loss is the contrastive one in a phase without labels, which has no accuracy. A site's loss never leaves it in
    a federation; here the sites' own histories are read, for all of them lie in one place.

    Args:
        folder: The run's folder.
        sites: Names of the folders of its sites.
    """
    histories = [read_history(folder / site).numbered() for site in sites]
    found = []
    for number in sorted({number for history in histories for number in history}):
        there = [history[number] for history in histories if number in history]
        losses = [one["contrast_loss"] if "contrast_loss" in one else one.get("loss") for one in there]
        right = [one["validation"]["accuracy"] for one in there if one.get("validation")]
        known = [loss for loss in losses if loss is not None]
        if known:
            found.append(
                {
                    "phase": str(there[0]["step"]).rpartition("-")[0],
                    "loss": fmean(known),
                    "accuracy": fmean(right) if right else None,
                }
            )
    return found
