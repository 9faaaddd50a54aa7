"""The table of a finished run, a line per site, rendered from stored results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedretina.aggregation.unfinished import unfinished_note
from fedretina.report.text import outcomes_sentence

_COLUMNS = (
    ("site", 12),
    ("grades", 6),
    ("images", 16),
    ("test AUC", 8),
    ("accuracy", 8),
    ("theta", 6),
    ("weight", 6),
    ("error AUROC", 11),
)


def results_table(results: Mapping[str, Any]) -> str:
    """Render grades, images (train/val/test), test AUC, accuracy, theta, weight and error-detection AUROC per site.

    A figure that is undefined (no errors, one class present) or held back shows as a dash. The mean is the plain mean
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
            _figure(figures.get("test_accuracy")),
            _figure(figures.get("theta")),
            _figure(figures.get("weight")),
            _figure(figures.get("test_error_auroc")),
        )
        lines.append("  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True)))
    means = {name: _mean(results, name) for name in ("test_auc", "test_accuracy", "test_error_auroc")}
    cells = (
        "mean",
        "",
        "",
        _figure(means["test_auc"]),
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


def _figure(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _mean(results: Mapping[str, Any], name: str) -> float | None:
    found = [figures[name] for figures in results["sites"].values() if figures.get(name) is not None]
    return sum(found) / len(found) if found else None
