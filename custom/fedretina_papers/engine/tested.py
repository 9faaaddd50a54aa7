"""Columns of a study's stored tests: each row against the reference, over seeds, over patients and together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedretina.report.text import NONE, number
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, render
from fedretina_papers.markdown import chance, interval, signed
from fedretina_papers.measures import DISEASE, MAIN
from fedretina_papers.statistics.paired_seeds import smallest_seen
from fedretina_papers.stored import Benchmark, Record


def compared_lines(benchmark: Benchmark, statistics: Record, label: Callable[[str], str] | None = None) -> list[Line]:
    """A line per row that was compared with the reference, in the order of the plan.

    Args:
        benchmark: What was run.
        statistics: Its statistics.
        label: What a row is called; its title by default.
    """
    named = label or benchmark.title
    return [Line((named(name),), name) for name, _ in benchmark.compared(statistics)]


def tested(statistics: Record, title: str, place: tuple[str, ...], show: Callable[[Any], str]) -> Column:
    """What is stored at a place of each row's comparison.

    Args:
        statistics: The study's statistics.
        title: Of the column.
        place: Keys within the row's comparison; nothing there is None.
        show: Prints it.
    """
    return Column(title, told=lambda line: show(_at(statistics["comparisons"].get(line.row), place)))


def mean_tests(
    benchmark: Benchmark, statistics: Record, key: str = MAIN, label: Callable[[str], str] | None = None
) -> list[str]:
    """Differences over the mean of the sites, over seeds, over patients and together, adjusted over the rows.

    Args:
        benchmark: What was run.
        statistics: Its statistics.
        key: The measure.
        label: What a row is called; its title by default.
    """
    at = ("mean", "measures", key)
    columns = [
        tested(statistics, "difference", (*at, "difference"), signed),
        *_test(statistics, "95 % over seeds", (*at, "seeds")),
        *_test(statistics, "95 % over patients", (*at, "patients")),
        *_test(statistics, "95 % together", (*at, "together")),
        tested(statistics, "Holm", (*at, "together", "holm"), _bold),
        tested(statistics, "smallest that could be seen", at, _smallest),
    ]
    return render(Records({}), ["row"], compared_lines(benchmark, statistics, label), columns)


def disease_tests(benchmark: Benchmark, statistics: Record) -> list[str]:
    """Referable disease: DeLong's z combined over the sites, beside the bootstrap of the same figure."""
    delong, drawn = ("mean", "delong"), ("mean", "measures", DISEASE, "patients")
    columns = [
        tested(statistics, "difference", (*delong, "difference"), signed),
        tested(statistics, "z", (*delong, "z"), number),
        tested(statistics, "p", (*delong, "p"), chance),
        tested(statistics, "Holm", (*delong, "holm"), _bold),
        *_test(statistics, "95 % over patients", drawn),
        tested(statistics, "Holm", (*drawn, "holm"), chance),
    ]
    return render(Records({}), ["row"], compared_lines(benchmark, statistics), columns)


def site_tests(benchmark: Benchmark, statistics: Record, key: str) -> list[str]:
    """Differences at each site, interval and Holm's p: over patients and seeds together, or over patients by DeLong."""

    def cell(there: Mapping[str, Any] | None) -> str:
        entry = None if there is None else there["measures"][key]
        if there is None or entry is None or entry["difference"] is None:
            return NONE
        test = there["delong"] if key == DISEASE else entry["together"]
        adjusted = NONE if test is None else chance(test["holm"])
        span = interval(entry["patients"] if key == DISEASE else entry["together"])
        return f"{signed(entry['difference'])} ({span}); {adjusted}"

    columns = [tested(statistics, site, ("sites", site), cell) for site in benchmark.sites]
    return render(Records({}), ["row"], compared_lines(benchmark, statistics), columns)


def _test(statistics: Record, title: str, place: tuple[str, ...]) -> list[Column]:
    return [tested(statistics, title, place, interval), tested(statistics, "p", (*place, "p"), chance)]


def _at(held: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        held = None if held is None else held.get(key)
    return held


def _bold(p: float | None) -> str:
    return f"**{chance(p)}**"


def _smallest(entry: Mapping[str, Any]) -> str:
    """Of both chances together, as Holm's p before the adjustment."""
    seeds, drawn = entry["seeds"], entry["patients"]
    variance = None if drawn is None else drawn["variance"]
    return NONE if variance is None else number(smallest_seen(seeds["n"], seeds["sd"], variance), 3)
