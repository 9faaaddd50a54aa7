"""The page of the OCT benchmark: what was run, the paper's tables, differences, unseen diseases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from fedretina.report.render import write_page
from fedretina.storage import read_json
from fedretina_papers.compared import STATISTICS
from fedretina_papers.engine.page import page as page_of
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.tested import mean_tests
from fedretina_papers.markdown import listed, several
from fedretina_papers.measures import MAIN
from fedretina_papers.oct_convergence import convergence_chart
from fedretina_papers.oct_figures import read_oct_figures, store_oct_figures
from fedretina_papers.oct_page import Dealt, oct_page
from fedretina_papers.out_of_distribution_table import out_of_distribution
from fedretina_papers.pictures import Pictures
from fedretina_papers.stored import Benchmark, Record, read_benchmark
from fedretina_papers.what_was_run import warnings, what_was_run

_POOLED = (
    "Tables 3 to 7 and 9 pool the test images of the sets on which the reference trained and whose sites know all "
    "classes, the same images for every row; where a site is named its figures are its own."
)

CLIENTS = "clients"
"""Folder within a benchmark's whose own benchmark gives Table 7: the same images dealt to more and fewer sites."""

STARTS = {"none": "from scratch", "package": "from ImageNet", "file": "from a file of weights"}
"""Where an encoder starts, in words, by the source of its weights."""


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
    benchmark = read_benchmark(out)
    statistics = read_json(out / STATISTICS) if (out / STATISTICS).exists() else None
    before = [
        *warnings(benchmark, statistics),
        *_shorter(benchmark),
        *_encoder_rates(benchmark),
        *what_was_run(benchmark, statistics, course_words(benchmark, benchmark.reference), _POOLED),
    ]
    outside = out_of_distribution(benchmark, Records(benchmark.runs, benchmark.sites))
    after = [*_differences(benchmark, statistics), *page_of("out_of_distribution.md.j2", outside=outside).splitlines()]
    target, planned = float(benchmark.plan.get("target", 0.9)), tuple(benchmark.plan["rows"])
    results, dealt = read_oct_figures(out), _dealt(out / CLIENTS)
    shown = Pictures(page, pictures, f"benchmark_{benchmark.plan['name']}") if pictures else None
    picture = shown.show("convergence", convergence_chart(results)) if shown else []
    write_page(page, oct_page(results, target, before, after, planned, dealt, picture))


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
    before = [
        "Runs of their own, with other splits than the tables above, so that only the rows of this table compare: the "
        f"same images dealt to more and more sites; {several(len(seeds), 'seed')}; {splits}."
        + (f" Settings {ran}." if ran else ""),
        "",
    ]
    return Dealt(read_oct_figures(out), tuple(benchmark.plan["rows"]), before)


def course_words(benchmark: Benchmark, name: str) -> str:
    """Encoder, size of images, and how each phase of a row trains; empty without a run of it."""
    run = next(iter(benchmark.runs.get(name, {}).values()), None)
    if run is None:
        return ""
    settings, network = run["settings"], run["settings"]["network"]
    starts = STARTS[network["weights"]["source"]]
    images = settings["images"]  # signals have a length instead of a side
    size = f"{images['image_size']} px" if "image_size" in images else f"{images['length']} values a channel"
    said = [f"of {benchmark.title(name)}: {network['encoder']} {starts}, {size}"]
    for phase in settings["phases"]:
        training = phase["training"] or settings["training"]
        said.append(
            f"{phase['name']} {several(phase['rounds'], 'round')} of {several(training['epochs'], 'epoch')}, "
            f"{training['optimizer']} at {training['learning_rate']}, batches of {training['batch_size']}"
            + (f", {100 * phase['label_share']:g} % of the labels" if phase["label_share"] < 1 else "")
        )
    return "; ".join(said)


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


def _differences(benchmark: Benchmark, statistics: Record | None) -> list[str]:
    if statistics is None or not statistics["comparisons"]:
        return []
    lines = [f"## What may be claimed: {benchmark.title(benchmark.reference)} less each row", ""]
    for key, title in ((MAIN, "Macro AUC"), ("accuracy", "Accuracy")):
        lines += [f"**{title}**, plain mean of the sites:", "", *mean_tests(benchmark, statistics, key)]
    return lines
