"""The page of the OCT benchmark: what was run, the paper's tables, differences, unseen diseases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.report import render as report
from fedretina.report.svg import Chart
from fedretina.report.text import count
from fedretina.storage import read_json
from fedretina_papers import oct_tables as tables
from fedretina_papers.compared import STATISTICS
from fedretina_papers.engine.page import page as filled
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column
from fedretina_papers.engine.tested import helps, helps_table, mean_tests
from fedretina_papers.line_chart import Series, line_chart
from fedretina_papers.markdown import listed, several
from fedretina_papers.measures import MAIN
from fedretina_papers.oct_figures import read_oct_figures, store_oct_figures
from fedretina_papers.oct_runs import OctResults
from fedretina_papers.out_of_distribution_table import out_of_distribution
from fedretina_papers.pictures import Pictures
from fedretina_papers.published import published_oct
from fedretina_papers.stored import Benchmark, end_words, read_benchmark
from fedretina_papers.what_was_run import course_words, warnings, what_was_run

_POOLED = (
    "Tables 3 to 7 and 9 pool the test images of the sets on which the reference trained and whose sites know all "
    "classes, the same images for every row; where a site is named its figures are its own."
)
_TESTED = {MAIN: "Macro AUC", "accuracy": "Accuracy"}
CLIENTS = "clients"
"""Folder within a benchmark's whose own benchmark gives Table 7: the same images dealt to more and fewer sites."""


class Dealt(NamedTuple):
    """Runs over the same images dealt to more and fewer sites, from a folder of their own.

    Attributes:
        results: Figures of the runs.
        planned: Names of its plan's rows.
        ran: What was run, in words.
        controls: Names of the plan's controls.
    """

    results: OctResults
    planned: Sequence[str]
    ran: str
    controls: Sequence[str] = ()


def write_oct_page(out: Path, page: Path, pictures: Path | None = None) -> None:
    """Render the page; the same bytes for the same records.

    Args:
        out: The benchmark's folder: plan, results, costs, and answers or the figures that were worked out from them; in
            `clients` there may be another such folder, which then gives Table 7.
        page: Markdown file to write.
        pictures: Folder of the picture that the page shows; None for a page without.

    Raises:
        StateError: There is no plan, or a record or the answers of a run are missing or damaged.
    """
    if (out / "answers").exists():
        store_oct_figures(out)
    benchmark, results = read_benchmark(out), read_oct_figures(out)
    statistics = read_json(out / STATISTICS) if (out / STATISTICS).exists() else None
    ran = [
        *warnings(benchmark, statistics),
        *_shorter(benchmark),
        *_encoder_rates(benchmark),
        *what_was_run(benchmark, statistics, course_words(benchmark, benchmark.reference), _POOLED),
    ]
    shown = Pictures(page, pictures, f"benchmark_{benchmark.plan['name']}") if pictures else None
    text = oct_page(
        results,
        float(benchmark.plan.get("target", 0.9)),
        tuple(benchmark.plan["rows"]),
        _dealt(out / CLIENTS),
        ran=ran,
        picture=shown.show("convergence", convergence_chart(results)) if shown else [],
        reference=benchmark.title(benchmark.reference),
        tests={}
        if statistics is None or not statistics["comparisons"]
        else {title: mean_tests(benchmark, statistics, key) for key, title in _TESTED.items()},
        outside=out_of_distribution(benchmark, Records(benchmark.runs, benchmark.sites)),
        controls=benchmark.controls,
        helping=helps(statistics, *_TESTED),
        helps={
            title: made
            for key, title in _TESTED.items()
            if statistics is not None and (made := helps_table(benchmark, statistics, key))
        },
    )
    report.write_page(page, text)


def oct_page(
    results: OctResults,
    target: float = 0.9,
    planned: Sequence[str] | None = None,
    dealt: Dealt | None = None,
    controls: Sequence[str] = (),
    helping: Sequence[Column] = (),
    **more: Any,
) -> str:
    """Tables 3 to 9 and the convergence as Markdown; the same text for the same runs.

    Args:
        results: Figures of the runs; rows of the paper without any say that they were not run.
        target: Validation accuracy in [0, 1] of Table 5's rounds.
        planned: Names of the plan's rows, so that each table says which of its rows the plan has not; None says
            nothing of it.
        dealt: Runs that Table 7 shows instead of those of `results`.
        controls: Names of the plan's rows that each client trains alone, and of those of all scans in one place.
        helping: Columns that say whether a row helps.
        more: What else the template shows: `ran`, `picture`, `reference`, `tests`, `helps` and `outside`.
    """
    paper = published_oct()
    runs = results.runs.get(paper.proposed, ())
    trained = sorted({one.run.training_images for one in runs if one.run.training_images is not None})
    pooled = sorted({one.union.n for many in results.runs.values() for one in many if one.union is not None})
    names = {which: planned if dealt is None or which != "table7" else dealt.planned for which in paper.tables}
    classes = runs[0].run.classes if runs else ()
    unlike = [name for name in classes if name.lower() not in paper.tables["table4"].rows]
    apart = [said for key, said in paper.tables["table4"].rows.items() if key not in {one.lower() for one in classes}]
    shown = {"ran": [], "picture": [], "reference": "", "tests": {}, "helps": {}, "outside": None, **more}
    return filled(
        "oct.md.j2",
        **shown,
        paper=paper,
        seeds=_seeds(results),
        title=runs[0].run.title if runs else "",
        classes=classes,
        apart=apart if unlike else [],
        unlike=unlike,
        trained=[count(one) for one in trained],
        sets=results.sets,
        pooled=[count(one) for one in dict.fromkeys((pooled[0], pooled[-1]))] if pooled else [],
        intervals=tables.has_intervals(results),
        dealt=dealt,
        end=_end(results),
        dealt_end=_end(results if dealt is None else dealt.results),
        lacking={which: _not_planned(which, one, results.apart) for which, one in names.items()},
        table3=tables.method_table(results, helping),
        convergence=tables.convergence_table(results),
        table4=tables.class_table(results),
        took=tables.proposed_took(results),
        table5=tables.ablation_table(results, target, controls),
        table6=tables.communication_table(results, controls),
        recomputed=tables.recomputed_table(results),
        table7=tables.sites_table(*((results, controls) if dealt is None else (dealt.results, dealt.controls))),
        table8=tables.set_tables(results),
        set_images=tables.set_images(results),
        table9=tables.encoder_table(results),
    )


def _end(results: OctResults) -> str:
    return end_words({"moved": one.run.moved} for many in results.runs.values() for one in many)


def convergence_chart(results: OctResults) -> Chart | None:
    """Mean validation accuracy of the sites by round, a line a row; None without runs.

    Shown are the rows of Tables 3 and 5 and those that the paper has not, where they trained as many rounds with labels
    as the proposed method, or more. A line begins at the first round with labels.
    """
    paper = published_oct()
    names = [*paper.tables["table3"].rows, *paper.tables["table5"].rows, *tables.not_in_the_paper(results)]
    courses = {name: course for name in dict.fromkeys(names) if (course := _course(results, name))}
    own = courses.get(paper.proposed)
    least = len(own[0]) if own else max((len(xs) for xs, _ in courses.values()), default=0)
    series = [
        Series(results.runs[name][0].run.title, xs, by_seed, name == paper.proposed)
        for name, (xs, by_seed) in courses.items()
        if len(xs) >= least
    ]
    return line_chart("oct_convergence", series, "round", "validation accuracy, mean of the sites")


def _course(results: OctResults, name: str) -> tuple[list[int], list[list[float]]] | None:
    """Rounds with an accuracy, from 1, and the accuracies in [0, 1] by seed; None unless all seeds went alike."""
    told = [
        [(at, note.accuracy) for at, note in enumerate(one.run.history, 1) if note.accuracy is not None]
        for one in results.runs.get(name, ())
    ]
    rounds = {tuple(at for at, _ in course) for course in told}
    if len(rounds) != 1 or not all(told):
        return None
    return list(rounds.pop()), [[value for _, value in course] for course in told]


def _dealt(out: Path) -> Dealt | None:
    """The runs of Table 7 in a folder of their own; None where there is none."""
    if not (out / "plan.json").exists():
        return None
    if (out / "answers").exists():
        store_oct_figures(out)
    benchmark = read_benchmark(out)
    seeds = sorted({seed for runs in benchmark.runs.values() for seed in runs})
    splits = "patients split anew for each seed" if benchmark.resplit else "the sites' own splits, the same for all"
    ran = course_words(benchmark, benchmark.reference)
    told = (
        "Runs of their own, with other splits than the tables above, so that only the rows of this table compare: the "
        f"same images dealt to more and more sites; {several(len(seeds), 'seed')}; {splits}."
        + (f" Settings {ran}." if ran else "")
    )
    return Dealt(read_oct_figures(out), tuple(benchmark.plan["rows"]), told, benchmark.controls)


def _shorter(benchmark: Benchmark) -> list[str]:
    """Which rows ran fewer rounds of a phase than the reference, so that nobody compares them."""
    whole = _rounds(benchmark, benchmark.reference)
    told = []
    for name in benchmark.runs:
        own = _rounds(benchmark, name)
        short = [f"{phase} {count} of {whole[phase]}" for phase, count in own.items() if count < whole.get(phase, 0)]
        told += [f"{benchmark.title(name)} ({', '.join(short)})"] if short else []
    return [f"> **Fewer rounds than the reference**: {listed(told)}.", ""] if told else []


def _encoder_rates(benchmark: Benchmark) -> list[str]:
    """Which rows move the encoder slower than the head in the last phase, where rows differ in that."""
    factors: dict[float, list[str]] = {}
    for name, runs in benchmark.runs.items():
        settings = next(iter(runs.values()))["settings"]
        training = settings["phases"][-1]["training"] or settings["training"]
        factors.setdefault(float(training.get("encoder_factor", 1)), []).append(benchmark.title(name))
    if len(factors) < 2:
        return []
    told = [
        f"{f'{factor:g} of ' if factor != 1 else ''}the head's rate ({listed(names)})"
        for factor, names in sorted(factors.items())
    ]
    return [f"> **The last phase moves the encoder at different rates**: {'; '.join(told)}.", ""]


def _rounds(benchmark: Benchmark, name: str) -> Mapping[str, int]:
    runs = benchmark.runs.get(name, {}).values()
    counted = [Counter(note["phase"] for note in run.get("history") or ()) for run in runs]
    return max(counted, key=lambda one: sum(one.values()), default=Counter())


def _seeds(results: OctResults) -> str:
    counts = sorted({len(runs) for runs in results.runs.values()})
    if not counts:
        return "no seeds"
    return several(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def _not_planned(which: str, planned: Sequence[str] | None, apart: Mapping[str, str]) -> str:
    """Which rows of a table the plan has no run for."""
    if planned is None or which == "table4":  # the rows of Table 4 are classes
        return ""
    rows = published_oct().tables[which].rows
    without = [said for name, said in rows.items() if name not in planned]
    things = " sites" if which == "table7" else ""
    told = [f"The plan has no run for {listed(without)}{things}, so nothing of ours stands there."] if without else []
    if which == "table8":
        never = [said for name, said in rows.items() if name not in apart.values()]
        told += [f"The plan leaves no set out of training for {listed(never)}."] if never else []
    return " ".join(told)
