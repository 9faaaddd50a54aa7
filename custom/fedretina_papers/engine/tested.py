"""A study's stored tests: each row against the reference, and each federated one against every row alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedretina.report.text import NONE, number
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, of_both, render, taken
from fedretina_papers.markdown import chance, interval, signed
from fedretina_papers.measures import DISEASE, MAIN, MEASURES
from fedretina_papers.statistics.beats_every import helps_words
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
    return [Line((named(name),), name, benchmark.reference) for name, _ in benchmark.compared(statistics)]


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
        *_taken(benchmark),
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
        *_taken(benchmark),
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
    return render(Records({}), ["row"], compared_lines(benchmark, statistics), [*columns, *_taken(benchmark)])


def helps(statistics: Record | None, *keys: str) -> list[Column]:
    """By which of some measures a row is said to help: where it beats every row alone; nothing without such tests.

    Args:
        statistics: The study's statistics; None where they are not computed.
        keys: The measures.
    """
    found = (statistics or {}).get("beaten_least") or {}  # an older version stored none
    if not any(found.get(key) for key in keys):
        return []

    def told(line: Line) -> str:
        by = {MEASURES[key].title: one["holm"] for key in keys if (one := found.get(key, {}).get(line.row))}
        return helps_words(by, "seeds or controls")

    return [Column("helps", told=told)]


def helps_table(
    benchmark: Benchmark, statistics: Record, key: str = MAIN, label: Callable[[str], str] | None = None
) -> list[str]:
    """Each federated row against the row alone that it beats least; nothing where none was tested.

    Args:
        benchmark: What was run.
        statistics: Its statistics.
        key: The measure.
        label: What a row is called; its title by default.
    """
    named, found = label or benchmark.title, (statistics.get("beaten_least") or {}).get(key) or {}
    lines = [
        Line((named(name), named(found[name]["control"])), name, found[name]["control"])
        for name in benchmark.plan["rows"]
        if name in found
    ]
    columns = [
        Column("difference", told=lambda line: signed(found[line.row]["mean"])),
        Column("95 %, seeds and patients", told=lambda line: interval(found[line.row])),
        Column("beats every row alone: p, Holm", told=lambda line: chance(found[line.row]["holm"])),
        Column("smallest that could be seen", told=lambda line: number(found[line.row]["seen"], 3)),
        *_taken(benchmark),
    ]
    return render(Records({}), ["row", "least beaten"], lines, columns) if lines else []


def _taken(benchmark: Benchmark) -> list[Column]:
    """Passes and bytes of both rows of a line."""
    records = Records(benchmark.runs)
    return of_both(records, taken(records))


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
