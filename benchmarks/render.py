"""The page of figures, rendered from the stored results alone: `python -m benchmarks.render`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import ge, itemgetter, le, lt
from pathlib import Path
from typing import Any

from benchmarks.common import NAMES, PAGE, RESULTS, Result
from fedretina_papers.engine.table import listing

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {"at least": ge, "at most": le, "under": lt}
_HEAD = """# Benchmarks

Written by `make benchmark` from the figures in `benchmarks/results/`; do not edit. What each measures and how to run
one alone: [benchmarks/README.md](../benchmarks/README.md). A target is judged by the median of the repeats, in every
case that has its figure.
"""


def load(folder: Path, names: Sequence[str]) -> list[Result]:
    """Read the stored results in the order of the names; a benchmark that never ran is left out."""
    paths = [folder / f"{name}.json" for name in names]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def page(results: Sequence[Result]) -> str:
    """Render the whole page."""
    parts = [_HEAD, *("\n".join(section(found)) for found in results)]
    return "\n".join(parts)


def section(found: Result) -> list[str]:
    """Render one benchmark: what was compared, the verdict, the figures, the machine."""
    lines = [f"## {found['title']}", "", found["compared"], "", verdict(found), ""]
    each = [(case, name, spread) for case, figures in found["cases"].items() for name, spread in figures.items()]
    columns: dict[str, Callable[[tuple[str, str, Mapping[str, Any]]], str]] = {
        "case": itemgetter(0),
        "figure": itemgetter(1),
        "min": lambda one: number(one[2]["min"]),
        "median": lambda one: number(one[2]["median"]),
        "max": lambda one: number(one[2]["max"]),
        "repeats": lambda one: str(len(one[2]["repeats"])),
    }
    lines += listing(each, columns, right=range(2, 6))
    lines += [line for note in found["notes"] for line in (note, "")]
    settings = "; ".join(f"{name}: {value}" for name, value in found["settings"].items())
    took = f" It took {found['seconds']} s; load before it {found['load_before']}." if "seconds" in found else ""
    changed = ", with changes" if found.get("changed") else ""
    commit = f" Commit {found['commit'][:8]}{changed}." if found.get("commit") else ""
    return [*lines, f"Settings: {settings}.", "", machine_line(found["machine"]) + took + commit, ""]


def verdict(found: Result) -> str:
    """Say what the targets were and whether every case meets them."""
    if not found["targets"]:
        return "No target was set; the figures stand side by side."
    return " ".join(_judged(goal, found["cases"]) for goal in found["targets"])


def _judged(goal: Mapping[str, Any], cases: Mapping[str, Mapping[str, Any]]) -> str:
    medians = {case: figures[goal["figure"]]["median"] for case, figures in cases.items() if goal["figure"] in figures}
    holds = _HOLDS[goal["bound"]]
    missed = {case: median for case, median in medians.items() if not holds(median, goal["value"])}
    said = f"Target: {goal['figure']} {goal['bound']} {number(goal['value'])}."
    if not medians:
        return f"{said} **Not measured** here."
    if not missed:
        found_text = ", ".join(f"{number(median)} ({case})" for case, median in medians.items())
        return f"{said} **Met**: {found_text}."
    missed_text = ", ".join(f"{number(median)} ({case})" for case, median in missed.items())
    met = [f"{number(median)} ({case})" for case, median in medians.items() if case not in missed]
    also = f"; met: {', '.join(met)}" if met else ""
    return f"{said} **Missed** in {len(missed)} of {len(medians)} cases: {missed_text}{also}."


def machine_line(machine: Mapping[str, Any]) -> str:
    """The machine that the figures were taken on, in a line."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}; "
        f"Python {machine['python']}, {versions}; {machine['date']}; load at the end {machine['load_after']}."
    )


def number(value: float) -> str:
    """A figure in four digits, which are more than any of them is worth."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 0.01:
        return f"{value:.4f}"
    return f"{value:.4g}"


if __name__ == "__main__":
    PAGE.write_text(page(load(RESULTS, NAMES)), encoding="utf-8")
