"""The page of the label-efficiency benchmark: starts over shares of the labels, their differences, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fedretina.report.render import write_page
from fedretina.report.svg import Chart
from fedretina.report.text import NONE, count, number
from fedretina.storage import read_json
from fedretina_papers.compared import STATISTICS
from fedretina_papers.label_efficiency import LABELS
from fedretina_papers.label_plan import row_name
from fedretina_papers.line_chart import Series, line_chart
from fedretina_papers.markdown import NOT_RUN, chance, interval, listed, several, signed, spread, table
from fedretina_papers.oct_benchmark_page import STARTS, course_words
from fedretina_papers.pictures import Pictures
from fedretina_papers.statistics.paired_seeds import seed_test
from fedretina_papers.stored import Benchmark, Record, read_benchmark
from fedretina_papers.what_was_run import warnings, what_was_run

_FIGURES = (("auc", "Macro AUC"), ("accuracy", "Accuracy"))
_OVER = "share of the labels"
_MEANS = "Figures are each site's own; a mean over sites is the plain mean of their figures."
_TEST = (
    "Differences are paired by seed. The t test over seeds asks whether another training would come out alike, not "
    "whether other patients would; with a few seeds it sees only large differences, and nothing is adjusted for the "
    "number of rows."
)


def write_label_page(out: Path, page: Path, pictures: Path) -> None:
    """Render the page and its picture; the same bytes for the same records.

    Args:
        out: The benchmark's folder: plan and results.
        page: Markdown file to write.
        pictures: Folder for the SVG file that the page shows.

    Raises:
        StateError: There is no plan, or a record is damaged.
    """
    benchmark, asked = read_benchmark(out), read_json(out / LABELS)
    statistics = read_json(out / STATISTICS) if (out / STATISTICS).exists() else None
    shown = Pictures(page, pictures, f"benchmark_{benchmark.plan['name']}")
    lines = [
        f"# Benchmark: {benchmark.plan['name']}",
        "",
        "Research software, not a medical device. Written from the stored runs; do not edit. One fine-tuning from "
        "several starts, with fewer and fewer labels: what is pre-training worth? A share is of the training images of "
        "each site, whole patients, and a smaller one lies within a larger one; the labels of validation, by which the "
        "round is chosen, are all used. Pre-training sees the images of train and no label.",
        "",
        *warnings(benchmark, statistics),
        *what_was_run(benchmark, statistics, _course(benchmark, asked), _MEANS),
        *_pretraining(out, asked),
        "## Over shares of the labels",
        "",
        *shown.show("auc", label_chart(benchmark, asked)),
    ]
    for key, title in _FIGURES:
        lines += [
            f"**{title}**, test splits: mean over seeds, smallest and largest in brackets.",
            "",
            *share_table(benchmark, asked, key),
        ]
    for other in asked["against"]:
        lines += [f"## Difference to the start {_title(asked, other)}", "", *difference_tables(benchmark, asked, other)]
    lines += [_TEST, ""] if asked["against"] else []
    write_page(page, "\n".join(lines).rstrip() + "\n")


def share_table(benchmark: Benchmark, asked: Record, key: str) -> list[str]:
    """A figure of each start and share, per site and over their plain mean.

    Args:
        benchmark: What was run.
        asked: Starts and shares, as stored in `labels.json`.
        key: "auc" or "accuracy".
    """
    head = ["start", "labels", "labelled images, all sites", *benchmark.sites, "mean of the sites"]
    rows = []
    for start in asked["order"]:
        for share in asked["shares"]:
            name = row_name(start, share["tag"])
            cells = [_title(asked, start), _percent(share["share"])]
            if name not in benchmark.runs:
                rows.append([*cells, *[NOT_RUN] * (len(benchmark.sites) + 2)])
                continue
            by_site = [spread(benchmark.by_seed(name, key, site)) for site in benchmark.sites]
            rows.append([*cells, _labelled(benchmark, name), *by_site, spread(benchmark.by_seed(name, key))])
    return table(head, rows)


def difference_tables(benchmark: Benchmark, asked: Record, other: str) -> list[str]:
    """Each start less another one with the same share and seed: by site, and the mean of the sites with its test.

    Args:
        benchmark: What was run.
        asked: Starts and shares.
        other: Name of the start that is subtracted.
    """
    lines = []
    head = ["start", "labels", "seeds", *benchmark.sites, "mean of the sites", "95 % over seeds", "p over seeds"]
    for key, title in _FIGURES:
        rows = []
        for start in (one for one in asked["order"] if one != other):
            for share in asked["shares"]:
                ours, theirs = (row_name(one, share["tag"]) for one in (start, other))
                gaps = benchmark.gaps(ours, theirs, key)
                test = seed_test(gaps)
                by_site = [_mean(benchmark.gaps(ours, theirs, key, [site])) for site in benchmark.sites]
                cells = [_title(asked, start), _percent(share["share"]), str(test.n), *by_site, _mean(gaps)]
                rows.append([*cells, interval(test._asdict()), chance(test.p)])
        lines += [f"**{title}**:", "", *table(head, rows)]
    return lines


def label_chart(benchmark: Benchmark, asked: Record) -> Chart | None:
    """Mean macro AUC of the sites over the share of the labels, a line a start; None without runs."""
    series = []
    for start in asked["order"]:
        names = {share["share"]: row_name(start, share["tag"]) for share in asked["shares"]}
        run = {share: name for share, name in names.items() if name in benchmark.runs}
        if not run:
            continue
        seeds = sorted(set.intersection(*(set(benchmark.runs[name]) for name in run.values())))
        values = [[_macro(benchmark, name, seed) for name in run.values()] for seed in seeds]
        known = [line for line in values if None not in line]
        if known:
            whole = [[value for value in line if value is not None] for line in known]
            bold = asked["starts"][start]["pretrain"] is not None
            series.append(Series(_title(asked, start), list(run), whole, bold))
    ticks = {share["share"]: _percent(share["share"]) for share in asked["shares"]}
    return line_chart("label_efficiency", series, _OVER, "macro AUC, mean of the sites", ticks)


def _macro(benchmark: Benchmark, name: str, seed: int) -> float | None:
    found = [benchmark.figure(name, seed, site, "auc") for site in benchmark.sites]
    known = [value for value in found if value is not None]
    return fmean(known) if known else None


def _course(benchmark: Benchmark, asked: Record) -> str:
    names = [row_name(asked["order"][0], share["tag"]) for share in asked["shares"]]
    return " / ".join(words for words in (course_words(benchmark, name) for name in names) if words)


def _pretraining(out: Path, asked: Record) -> list[str]:
    """How the contrastive loss fell in the pre-training of each start that has one."""
    told = []
    for start in asked["order"]:
        if asked["starts"][start]["pretrain"] is None:
            continue
        stored = [read_json(path) for path in sorted((out / "encoders" / f"pretrain_{start}").glob("seed-*.json"))]
        losses = [one["contrast_loss"] for one in stored]
        if not losses:
            told.append(f"{_title(asked, start)} {NOT_RUN}")
            continue
        ends = [fmean(one[at] for one in losses) for at in (0, -1)]
        source = stored[0]["settings"]["network"]["weights"]["source"]
        told.append(
            f"{_title(asked, start)} began {STARTS[source]}, {several(len(losses[0]), 'round')}, contrastive loss "
            f"{number(ends[0], 3)} to {number(ends[1], 3)}, {several(len(losses), 'seed')}"
        )
    return [f"Pre-training: {listed(told)}.", ""] if told else []


def _labelled(benchmark: Benchmark, name: str) -> str:
    """Labelled training images over all sites, the mean over seeds."""
    sums = [
        sum(site["labelled"] for site in run["sites"].values() if site.get("labelled") is not None)
        for run in benchmark.runs[name].values()
    ]
    return count(round(fmean(sums))) if sums else NONE


def _mean(gaps: Sequence[float]) -> str:
    return signed(fmean(gaps)) if gaps else NONE


def _title(asked: Record, start: str) -> str:
    return str(asked["starts"][start]["title"])


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
