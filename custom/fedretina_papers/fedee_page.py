"""The page of a FedEE benchmark: the paper's tables and figures from our runs, from stored figures alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedretina.storage import read_json
from fedretina_papers import fedee_charts as charts
from fedretina_papers import fedee_tables as tables
from fedretina_papers.compared import STATISTICS
from fedretina_papers.engine.page import write_page
from fedretina_papers.engine.records import PLAIN, Records
from fedretina_papers.engine.tested import helps, helps_table, mean_tests
from fedretina_papers.fedee_cost_page import cost_values
from fedretina_papers.fedee_figures import PAPER_RATE, RATES, store_fedee_figures
from fedretina_papers.fedee_results import LESS_IS_BETTER, FedeeResults, fedee_results
from fedretina_papers.out_of_distribution_table import out_of_distribution
from fedretina_papers.pictures import Pictures
from fedretina_papers.published import KEYS, published_fedee
from fedretina_papers.stored import Benchmark
from fedretina_papers.what_was_run import course_words, last_round, warnings, what_was_run

_BY_SIZE = (
    "Means over sites weigh a site by its test images unless they say otherwise, as the paper's do. Sites keep their "
    "own models; only Figure 5 ranks the cases of all of them together, as the paper's does."
)
_TESTED = {"accuracy": "Share of right answers", "error_auroc": "Misdiagnosis detection", "aurc": "AURC"}


def write_fedee_page(out: Path, page: Path, pictures: Path) -> None:
    """Render the page and its pictures; the same bytes for the same records.

    Args:
        out: The benchmark's folder: plan, results, and answers or the figures that were worked out from them.
        page: Markdown file to write.
        pictures: Folder of the pictures.

    Raises:
        StateError: There is no plan, or a record or the answers of a run are missing or damaged.
    """
    if (out / "answers").exists():
        store_fedee_figures(out)
    results = fedee_results(out)
    benchmark = results.benchmark
    records = Records(benchmark.runs, benchmark.sites)
    statistics = read_json(out / STATISTICS) if (out / STATISTICS).exists() else None
    shown = Pictures(page, pictures, f"benchmark_{benchmark.plan['name']}")
    course = course_words(benchmark, benchmark.reference)
    estimators, without = tables.estimator_tables(results)
    tuning, apart = tables.tuning_tables(results)
    helping = helps(statistics, *_TESTED)
    titles = {**results.titles, **LESS_IS_BETTER}
    write_page(
        "fedee.md.j2",
        page,
        plan=benchmark.plan,
        paper=published_fedee(),
        results=results,
        reference=results.label(benchmark.reference),
        ran=[*warnings(benchmark, statistics), *what_was_run(benchmark, statistics, course, _BY_SIZE)],
        ensembles=_ensembles(benchmark),
        table3=tables.strategy_table(results, ["FedAvg"], helping=helping),
        constant=tables.constant_table(results),
        table5=tables.strategy_table(results, helping=helping),
        wins=tables.win_words(results),
        table13=tables.strategy_table(results, eta=PLAIN, helping=helping),
        plain_wins=tables.win_words(results, PLAIN),
        estimators=estimators,
        without=without,
        members=tables.member_tables(results),
        pictures=_pictures(results, shown),
        rates=RATES,
        paper_rate=PAPER_RATE,
        refer={level: tables.refer_table(results, level) for level in results.figures["asked"]["level"]},
        undefined=tables.undefined_table(results),
        other_sites=tables.others_table(results, records),
        outside=out_of_distribution(benchmark, records, results.label),
        sets=tables.sets_table(results),
        alpha=float(results.figures["asked"]["alpha"]),
        calibration=tables.calibration_table(results),
        costs=cost_values(results, out, shown),
        tuning=tuning,
        apart=apart,
        table11=tables.personal_table(results),
        etas={title: tables.eta_table(results, key) for key, title in titles.items()},
        sites={title: tables.site_table(results, key) for key, title in titles.items()},
        helps={
            title: made
            for key, title in _TESTED.items()
            if statistics is not None and (made := helps_table(benchmark, statistics, key, results.label))
        },
        last=last_round(benchmark),
        tests={}
        if statistics is None or not statistics["comparisons"]
        else {title: mean_tests(benchmark, statistics, key, results.label) for key, title in _TESTED.items()},
    )


def _pictures(results: FedeeResults, shown: Pictures) -> dict[str, list[str]]:
    drawn = {
        "selective": charts.selective_chart(results),
        "refer": charts.refer_chart(results),
        "strangers": charts.out_of_distribution_chart(results),
    }
    etas = [line for key in KEYS for line in shown.show(f"eta_{key}", charts.eta_chart(results, key))]
    return {"eta": etas, **{what: shown.show(what, chart) for what, chart in drawn.items()}}


def _ensembles(benchmark: Benchmark) -> dict[str, Any]:
    """How many runs deep ensembles join, and how many trials of them there are at most; empty without any."""
    readings = [
        [run["reading"] for run in runs.values() if run.get("reading", {}).get("reading") == "deep_ensemble"]
        for runs in benchmark.runs.values()
    ]
    members = {len(one["runs"]) for row in readings for one in row}
    return {"members": [str(one) for one in sorted(members)], "trials": max(map(len, readings))} if members else {}
