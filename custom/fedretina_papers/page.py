"""The benchmark's page: tables, pictures and what they mean, from the stored records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedretina.report.render import write_page
from fedretina.storage import read_json
from fedretina_papers import charts, claims, sentences, tables
from fedretina_papers.compared import STATISTICS
from fedretina_papers.measures import DISEASE, MAIN, MEASURES
from fedretina_papers.pictures import Pictures
from fedretina_papers.published import PublishedTable, published
from fedretina_papers.stored import Benchmark, Record, read_benchmark
from fedretina_papers.what_was_run import warnings, what_was_run


def summarise(out: Path) -> dict[str, Any]:
    """The main figures of a benchmark, for a script: rows, comparisons with the reference, verdicts.

    Args:
        out: The benchmark's folder.

    Raises:
        StateError: There is no plan, or a record is damaged.
    """
    benchmark, found = read_benchmark(out), _statistics(out)
    return {
        "name": benchmark.plan["name"],
        "reference": benchmark.reference,
        "synthetic": list(benchmark.synthetic),
        "not_run": [name for name in benchmark.plan["rows"] if name not in benchmark.runs],
        "rows": claims.summary_rows(benchmark, found),
        "verdicts": None
        if found is None
        else {key: claims.verdicts(benchmark, found, key)._asdict() for key in MEASURES},
    }


def write_benchmark_page(out: Path, page: Path, pictures: Path) -> None:
    """Render the page and its pictures; the same bytes for the same records.

    Args:
        out: The benchmark's folder: plan, results and, where they are computed, statistics.
        page: Markdown file to write.
        pictures: Folder for the SVG files that the page shows.

    Raises:
        StateError: There is no plan, a record is damaged, or a file cannot be written.
    """
    benchmark, found = read_benchmark(out), _statistics(out)
    shown = Pictures(page, pictures, f"benchmark_{benchmark.plan['name']}")
    lines = [*_head(benchmark, found), *_paper_tables(benchmark)]
    lines += _uncertainty_and_noise(benchmark, found, shown)
    lines += [] if found is None else _comparisons(benchmark, found, shown)
    lines += [*_left_out(benchmark), *_rounds(benchmark, shown), *_sites(benchmark, found)]
    write_page(page, "\n".join(lines).rstrip() + "\n")


def _statistics(out: Path) -> Record | None:
    return read_json(out / STATISTICS) if (out / STATISTICS).exists() else None


def _head(benchmark: Benchmark, statistics: Record | None) -> list[str]:
    return [
        f"# Benchmark: {benchmark.plan['name']}",
        "",
        "Research software, not a medical device. Written from the stored runs; do not edit. "
        f"The paper is {published().paper}; its figures stand beside ours where a site holds the same public set, but "
        "with another split, size of the images and number of rounds: they are for orientation, not a target.",
        "",
        *warnings(benchmark, statistics),
        *what_was_run(benchmark, statistics),
        "Figures are of the test splits: mean over seeds, smallest and largest in brackets.",
        "",
    ]


def _paper_tables(benchmark: Benchmark) -> list[str]:
    first, second = published().tables["table1"], published().tables["table2"]
    others = tables.other_rows(benchmark)
    lines = ["## Table 1: macro AUC of the methods", "", *tables.paper_table(benchmark, "table1")]
    lines += sentences.ranking_words(benchmark, list(first.rows))
    lines += _errors(first)
    lines += _apart("The paper's other sites, which are none of ours:", tables.elsewhere(benchmark, "table1"))
    lines += ["## Table 2: what the parts add", "", *tables.paper_table(benchmark, "table2")]
    lines += ["Macro AUC, mean of the sites, with a part less without it:", "", *tables.step_table(benchmark)]
    lines += [*_errors(second), *_apart("The paper's other sites:", tables.elsewhere(benchmark, "table2"))]
    return [*lines, "## Rows that the paper has not", "", *others] if others else lines


def _apart(title: str, table: list[str]) -> list[str]:
    return [title, "", *table] if table else []


def _errors(table: PublishedTable) -> list[str]:
    if not table.errors:
        return []
    return ["Known of the printed figures:", "", *(f"- {sentence}" for sentence in table.errors), ""]


def _uncertainty_and_noise(benchmark: Benchmark, statistics: Record | None, shown: Pictures) -> list[str]:
    title = benchmark.title(benchmark.reference)
    lines: list[str] = []
    if statistics is not None and statistics["uncertainty"].get(benchmark.reference):
        lines += [f"## Figures 2a and 2b: uncertainty of {title}, right and wrong answers", ""]
        lines += shown.show("uncertainty", charts.uncertainty(benchmark, statistics))
        lines += sentences.uncertainty_words(benchmark, statistics)
    chart = charts.noise(benchmark)
    lines += ["## Figure 2c: growing noise on the test images", "", *shown.show("noise", chart)]
    if chart is not None:
        lines += ["A line a row, the mean over seeds; the band reaches from the lowest seed to the highest.", ""]
    return [*lines, *sentences.noise_words(benchmark)]


def _comparisons(benchmark: Benchmark, statistics: Record, shown: Pictures) -> list[str]:
    title = benchmark.title(benchmark.reference)
    if not statistics["comparisons"]:
        return ["## Table 4: tests", "", f"No row shares a seed with {title}, so there is nothing to compare.", ""]
    return [
        "## Table 4: paired over seeds, as in the paper",
        "",
        f"p of the plain paired t test over seeds, macro AUC, each row against {title}.",
        "",
        *tables.seed_tests(benchmark, statistics),
        *(f"- {sentence}" for sentence in claims.paper_style_words(benchmark, statistics)),
        "",
        *_errors(published().tables["table4"]),
        f"## What may be claimed: {title} less each row",
        "",
        *claims.three_questions(benchmark, statistics),
        "",
        *shown.show("differences", charts.differences(benchmark, statistics)),
        "Small circles are seeds, the dot their mean, the bar the 95 % interval over patients, the line "
        "the one together.",
        "",
        f"**{MEASURES[MAIN].title}**, mean of the sites:",
        "",
        *tables.mean_tests(benchmark, statistics),
        *(f"- {claims.verdict_words(benchmark, statistics, key)}" for key in MEASURES if MEASURES[key].drawn),
        "",
        "## Referable disease",
        "",
        *tables.disease_tests(benchmark, statistics),
        *claims.disease_words(benchmark, statistics),
        "",
        "## How many seeds a claim needs",
        "",
        *claims.seeds_table(benchmark, statistics),
        *(f"- {sentence}" for sentence in claims.seeds_words(benchmark, statistics)),
        "",
    ]


def _left_out(benchmark: Benchmark) -> list[str]:
    ways = [f"{one.title}: {one.meaning}, {'more' if one.higher else 'less'} is better" for one in MEASURES.values()]
    return [
        "## What the paper leaves out",
        "",
        *tables.left_out(benchmark),
        f"{'; '.join(ways)}. Bytes are those of a whole run over all sites, seconds those of the machine with "
        "whatever else it did: they say nothing of speed elsewhere.",
        "",
    ]


def _rounds(benchmark: Benchmark, shown: Pictures) -> list[str]:
    title = benchmark.title(benchmark.reference)
    lines = shown.show("validation", charts.validation(benchmark))
    for what, key in (("theta", "theta_by_round"), ("weight", "weight_by_round")):
        chart = charts.by_site(benchmark, key, f"{what} of {title}")
        lines += shown.show(what, chart)
    return ["## By round", "", *lines] if lines else []


def _sites(benchmark: Benchmark, statistics: Record | None) -> list[str]:
    lines = ["## Each figure at each site", ""]
    for key in MEASURES:
        lines += [f"**{MEASURES[key].title}**", "", *tables.per_site(benchmark, key)]
    if statistics is None or not statistics["comparisons"]:
        return lines
    title = benchmark.title(benchmark.reference)
    lines += [f"## {title} less each row at each site", ""]
    for key in (MAIN, DISEASE, "kappa"):
        test = "over patients); DeLong's p" if key == DISEASE else "over patients and seeds together); its p"
        lines += [
            f"**{MEASURES[key].title}**: difference (95 % {test} after Holm over all rows and sites",
            "",
            *tables.site_tests(benchmark, statistics, key),
        ]
    return lines
