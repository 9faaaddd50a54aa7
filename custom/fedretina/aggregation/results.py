"""What a finished run's records say: its table, a line per site, and which sites trained and have no final figures.

Resuming a complete run asks those sites again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedretina.report.text import outcomes_sentence

if TYPE_CHECKING:  # whoever prints a table of stored figures does not wait for torch
    from fedretina.settings.plan import Plan

_COLUMNS = (
    ("site", 12),
    ("grades", 6),
    ("images", 16),
    ("test AUC", 8),
    ("with support", 12),
    ("accuracy", 8),
    ("theta", 6),
    ("weight", 6),
    ("error AUROC", 11),
)


def results_table(results: Mapping[str, Any]) -> str:
    """Render grades, images (train/val/test), AUCs, accuracy, theta, weight and error-detection AUROC per site.

    The test AUC is the mean over all grades that are present. "With support" is the mean over the grades of which
    enough test patients are there to tell, and in brackets how many those are; the others move the first by luck. A
    figure that is undefined (no errors, one class present) or held back shows as a dash. The mean is the plain mean
    over the sites that have the figure, since their grading criteria differ.
    """
    lines = ["  ".join(f"{title:>{width}}" for title, width in _COLUMNS)]
    for site, figures in sorted(results["sites"].items()):
        counts = [figures.get(f"images_{split}") for split in ("train", "val", "test")]
        images = "/".join("-" if count is None else f"{count:.0f}" for count in counts)
        cells = (
            site[:12],
            _figure(figures.get("grades"), 0),
            images,
            _figure(figures.get("test_auc")),
            _supported(figures),
            _figure(figures.get("test_accuracy")),
            _figure(figures.get("theta")),
            _figure(figures.get("weight")),
            _figure(figures.get("test_error_auroc")),
        )
        lines.append("  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True)))
    named = ("test_auc", "test_auc_supported", "test_accuracy", "test_error_auroc")
    means = {name: _mean(results, name) for name in named}
    cells = (
        "mean",
        "",
        "",
        _figure(means["test_auc"]),
        _figure(means["test_auc_supported"]),
        _figure(means["test_accuracy"]),
        "",
        "",
        _figure(means["test_error_auroc"]),
    )
    lines.append("  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True)))
    lines.append(f"run {results['run']}, model of {results['chosen']}, digest {results['model_digest'][:12]}")
    verdicts = results.get("verdicts", {})
    if "least" not in verdicts:  # too few sites for counts, which the server's page says
        lines += filter(None, [outcomes_sentence(verdicts)])
    phantoms = [site for site, figures in sorted(results["sites"].items()) if figures["synthetic"]]
    if phantoms:
        lines.append(f"synthetic images (phantom hospitals): {', '.join(phantoms)}")
    for site, reason in sorted(results.get("without_result", {}).items()):
        lines.append(f"no result from {site}: {reason}")
    words = unfinished_note(results)
    if words is not None:
        lines.append(words)
    return "\n".join(lines)


def _supported(figures: Mapping[str, Any]) -> str:
    counted = figures.get("test_grades_supported")
    return "-" if counted is None else f"{_figure(figures.get('test_auc_supported'))} ({counted:.0f})"


def _figure(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _mean(results: Mapping[str, Any], name: str) -> float | None:
    found = [figures[name] for figures in results["sites"].values() if figures.get(name) is not None]
    return sum(found) / len(found) if found else None


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
