"""The page of FedUAA's benchmark: tables, pictures and what they mean, from the stored records alone."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from fedretina.report.text import count, number
from fedretina.storage import read_json
from fedretina_papers import charts, claims, tables
from fedretina_papers.compared import STATISTICS
from fedretina_papers.engine.page import write_page
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.tested import disease_tests, helps_table, mean_tests, site_tests
from fedretina_papers.markdown import signed
from fedretina_papers.measures import DISEASE, MAIN, MEASURES
from fedretina_papers.pictures import Pictures
from fedretina_papers.published import published
from fedretina_papers.stored import Benchmark, Record, end_words, read_benchmark
from fedretina_papers.what_was_run import warnings, what_was_run

_ALL_IMAGES = 1_000_000  # the plan's way to say: no limit


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
    records, paper = Records(benchmark.runs, benchmark.sites), published()
    title = benchmark.title(benchmark.reference)
    shown = Pictures(page, pictures, f"benchmark_{benchmark.plan['name']}")
    unsure = None if found is None or not found["uncertainty"].get(benchmark.reference) else found
    drawn = {
        "noise": charts.noise(benchmark),
        "uncertainty": None if unsure is None else charts.uncertainty(benchmark, unsure),
        "differences": None if found is None else charts.differences(benchmark, found),
    }
    rounds = {
        "validation": charts.validation(benchmark),
        "theta": charts.by_site(benchmark, "theta_by_round", f"theta of {title}"),
        "weight": charts.by_site(benchmark, "weight_by_round", f"weight of {title}"),
    }
    write_page(
        "feduaa.md.j2",
        page,
        plan=benchmark.plan,
        paper=paper,
        title=title,
        main=MEASURES[MAIN].title,
        disease=MEASURES[DISEASE].title,
        measures=MEASURES,
        ran=[*warnings(benchmark, found), *what_was_run(benchmark, found)],
        table1=tables.paper_table(benchmark, records, "table1", found),
        ranking=_ranking_words(benchmark, records, list(paper.tables["table1"].rows)),
        table2=tables.paper_table(benchmark, records, "table2", found),
        steps=tables.step_table(records),
        elsewhere1=tables.elsewhere(benchmark, "table1"),
        elsewhere2=tables.elsewhere(benchmark, "table2"),
        uncertainty=unsure and tables.uncertainty_table(benchmark, records, unsure),
        noise=_noise_words(benchmark),
        tests=found and _tests(benchmark, records, found),
        left_out=tables.left_out(benchmark, records, found),
        end=end_words(run for runs in benchmark.runs.values() for run in runs.values()),
        pictures={what: shown.show(what, chart) for what, chart in drawn.items()},
        rounds=[line for what, chart in rounds.items() for line in shown.show(what, chart)],
        per_site={one.title: tables.per_site(benchmark, records, key, found) for key, one in MEASURES.items()},
    )


def _statistics(out: Path) -> Record | None:
    return read_json(out / STATISTICS) if (out / STATISTICS).exists() else None


def _tests(benchmark: Benchmark, records: Records, statistics: Record) -> dict[str, Any]:
    """What the page shows of the comparisons."""
    if not statistics["comparisons"]:
        return {"any": False}
    drawn = [key for key, one in MEASURES.items() if one.drawn]
    return {
        "any": True,
        "table4": tables.seed_tests(benchmark, records, statistics),
        "as_printed": claims.paper_style_words(statistics),
        "questions": claims.three_questions(benchmark, statistics),
        "helps": {
            one.title: made for key, one in MEASURES.items() if (made := helps_table(benchmark, statistics, key))
        },
        "main": mean_tests(benchmark, statistics),
        "verdicts": [claims.verdict_words(benchmark, statistics, key) for key in drawn],
        "disease": disease_tests(benchmark, statistics),
        "disease_words": claims.disease_words(benchmark, statistics),
        "seeds": claims.seeds_table(benchmark, statistics),
        "seeds_words": claims.seeds_words(benchmark, statistics),
        "sites": {MEASURES[key].title: site_tests(benchmark, statistics, key) for key in (MAIN, DISEASE, "kappa")},
    }


def _ranking_words(benchmark: Benchmark, records: Records, names: list[str]) -> list[str]:
    """Who stands highest in macro AUC over the mean of the sites, and how that compares with the spread of seeds."""
    means = {name: found for name in names if (found := records.values(name, f"test.{MAIN}"))}
    if len(means) < 2:
        return []
    order = sorted(means, key=lambda name: fmean(means[name]), reverse=True)
    best, reference = order[0], benchmark.reference
    lines = [
        f"Highest mean of the sites: {benchmark.title(best)}, {number(fmean(means[best]), 3)}. The rows' means lie "
        f"between {number(fmean(means[order[-1]]), 3)} and {number(fmean(means[best]), 3)}; a row's own seeds lie up "
        f"to {number(max(max(values) - min(values) for values in means.values()), 3)} apart."
    ]
    if reference in means and best != reference:
        gap = fmean(means[reference]) - fmean(means[best])
        lines.append(
            f"{benchmark.title(reference)} stands at {number(fmean(means[reference]), 3)}, place "
            f"{order.index(reference) + 1} of {len(order)}, {signed(gap)} to the highest."
        )
    lines.append("Order alone proves nothing: see the comparisons below.")
    return [" ".join(lines), ""]


def _noise_words(benchmark: Benchmark) -> list[str]:
    """How far macro AUC falls from the mildest to the strongest noise."""
    falls = {}
    for name, seeds in benchmark.runs.items():
        found = [fall for run in seeds.values() if (fall := _fall(run)) is not None]
        if found:
            falls[name] = fmean(found)
    if not falls:
        return ["The noise study was not run.", ""]
    order = sorted(falls, key=lambda name: falls[name])
    told = f"Least is lost by {benchmark.title(order[0])} ({number(falls[order[0]], 3)})"
    if len(order) > 1:
        told += f", most by {benchmark.title(order[-1])} ({number(falls[order[-1]], 3)})"
    if benchmark.reference in falls:
        place = order.index(benchmark.reference) + 1
        told += (
            f"; {benchmark.title(benchmark.reference)} loses {number(falls[benchmark.reference], 3)}, place {place} of "
            f"{len(order)}"
        )
    few = benchmark.plan.get("noise_images")
    limit = f" Answered were at most {count(few)} test images a site." if few and few < _ALL_IMAGES else ""
    return [f"{told}. A row that is near chance without noise has little to lose.{limit}", ""]


def _fall(run: Record) -> float | None:
    curve = charts.noise_curve(run)
    return curve[min(curve)] - curve[max(curve)] if len(curve) > 1 else None
