"""Which sites of a complete run trained for its model and have no final figures: resuming the run asks them again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # whoever prints a table of stored figures does not wait for torch
    from fedretina.settings.plan import Plan


def sites_without_result(steps: Sequence[Mapping[str, Any]], chosen: str, answered: Collection[str]) -> tuple[str, ...]:
    """Sites with an update in the chosen model, or in an earlier one, that did not answer `finalise`.

    A site whose updates all came later has no personal part for that model, and one that never trained has none at
    all: neither could end the run however often it is asked.

    Args:
        steps: Records of the steps before the last.
        chosen: Name of the step whose model was chosen.
        answered: Sites that have final figures.

    Returns:
        Names in alphabetical order.
    """
    tasks = {step["task"] for step in steps}
    task = next((task for task in ("train", "sums") if task in tasks), "pretrain")
    trained: set[str] = set()
    for step in steps:
        if step["task"] == task:
            trained.update(step["scalars"])
        if step["step"] == chosen:
            break
    return tuple(sorted(trained.difference(answered)))


def unfinished_at_end(records: Sequence[Mapping[str, Any]], plan: Plan) -> tuple[str, ...]:
    """The same from the records of all steps of a complete run."""
    *steps, final = records
    return sites_without_result(steps, plan[int(final["chosen"])].name, final["scalars"])


def unfinished(results: Mapping[str, Any]) -> tuple[str, ...]:
    """The same from a run's stored results."""
    return sites_without_result(results.get("steps", ()), results.get("chosen", ""), results.get("sites", ()))


def unfinished_note(results: Mapping[str, Any]) -> str | None:
    """What is to be done about them, in a sentence; None where every site that trained has its result."""
    sites = unfinished(results)
    if not sites:
        return None
    return (
        f"{', '.join(sites)} trained and {'has' if len(sites) == 1 else 'have'} no model yet: "
        f"`fedretina resume {results['run']}`, or the run started again by its name, asks for that alone."
    )
