"""Which candidate of its grid a row runs with: the best mean validation AUC, the test split unseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedretina.evaluation.model_selection import best_step, candidates


def validation_auc(results: Mapping[str, Any], window: int) -> float | None:
    """The smoothed mean validation AUC of the round that a run chose; None where no site could measure one.

    Args:
        results: A run's `results.json`.
        window: Rounds that the choice is averaged over.
    """
    steps = results["steps"]
    training = [number for number, step in enumerate(steps) if step["task"] == "train"]
    span = range(training[0], training[-1] + 1)
    chosen = best_step(steps, span, window)
    if chosen is None:
        return None
    means = [c.mean for c in candidates(steps, span) if chosen - window < c.step <= chosen]
    return sum(means) / len(means)


def best_candidate(aucs: Sequence[float | None]) -> int:
    """Number of the best candidate: the first of equals, and the first where none could be measured."""
    known = [(-1.0 if auc is None else auc) for auc in aucs]
    return max(range(len(known)), key=lambda at: (known[at], -at))
