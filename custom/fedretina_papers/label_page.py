"""The page of the label-efficiency benchmark: starts over shares of the labels, their differences, and a picture."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from fedretina.report.svg import Chart
from fedretina.report.text import number
from fedretina.storage import read_json
from fedretina_papers.compared import STATISTICS
from fedretina_papers.engine.page import write_page
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, by_site, mean_count, mean_signed, paired, render, seeds
from fedretina_papers.label_efficiency import LABELS
from fedretina_papers.label_plan import row_name
from fedretina_papers.line_chart import Series, line_chart
from fedretina_papers.markdown import NOT_RUN, several
from fedretina_papers.pictures import Pictures
from fedretina_papers.stored import Record, read_benchmark
from fedretina_papers.what_was_run import STARTS, course_words, warnings, what_was_run

_FIGURES = {"test.auc": "Macro AUC", "test.accuracy": "Accuracy"}
_LEAD = ("start", "labels")
_MEANS = "Figures are each site's own; a mean over sites is the plain mean of their figures."


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
    records = Records(benchmark.runs, benchmark.sites)
    shown = Pictures(page, pictures, f"benchmark_{benchmark.plan['name']}")
    first = [row_name(asked["order"][0], share["tag"]) for share in asked["shares"]]
    course = " / ".join(words for words in (course_words(benchmark, name) for name in first) if words)
    write_page(
        "oct_labels.md.j2",
        page,
        plan=benchmark.plan,
        ran=[*warnings(benchmark, statistics), *what_was_run(benchmark, statistics, course, _MEANS)],
        pretraining=_pretraining(out, asked),
        picture=shown.show("auc", label_chart(records, asked)),
        shares={title: share_table(records, asked, figure) for figure, title in _FIGURES.items()},
        differences={
            _title(asked, other): {
                title: difference_table(records, asked, other, figure) for figure, title in _FIGURES.items()
            }
            for other in asked["against"]
        },
    )


def share_table(records: Records, asked: Record, figure: str) -> list[str]:
    """A figure of each start and share, per site and over their plain mean.

    Args:
        records: What was run.
        asked: Starts and shares, as stored in `labels.json`.
        figure: "test.auc" or "test.accuracy".
    """
    labelled = Column("labelled images, all sites", "labelled", "sum", mean_count)
    return render(records, _LEAD, _lines(asked), [labelled, *by_site(records, Column("", figure))])


def difference_table(records: Records, asked: Record, other: str, figure: str) -> list[str]:
    """Each start less another one with the same share and seed: by site, and the mean of the sites with its test.

    Args:
        records: What was run.
        asked: Starts and shares.
        other: Name of the start that is subtracted.
        figure: "test.auc" or "test.accuracy".
    """
    gap = Column("", figure, show=mean_signed, difference=True)
    columns = [Column("seeds", figure, show=seeds, difference=True), *by_site(records, gap), *paired(figure)]
    return render(records, _LEAD, _lines(asked, other), columns)


def label_chart(records: Records, asked: Record) -> Chart | None:
    """Mean macro AUC of the sites over the share of the labels, a line a start; None without runs."""
    series = []
    for start in asked["order"]:
        run = {share["share"]: name for share in asked["shares"] if (name := _row(start, share)) in records}
        if not run:
            continue
        curves = [records.joined("test.auc").get(name, {}) for name in run.values()]
        by_seed = [[curve[seed] for curve in curves] for seed in curves[0] if all(seed in curve for curve in curves)]
        if by_seed:
            bold = asked["starts"][start]["pretrain"] is not None
            series.append(Series(_title(asked, start), list(run), by_seed, bold))
    ticks = {share["share"]: _percent(share) for share in asked["shares"]}
    return line_chart("label_efficiency", series, "share of the labels", "macro AUC, mean of the sites", ticks)


def _lines(asked: Record, other: str = "") -> list[Line]:
    return [
        Line((_title(asked, start), _percent(share)), _row(start, share), _row(other, share))
        for start in asked["order"]
        if start != other
        for share in asked["shares"]
    ]


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
    return told


def _row(start: str, share: Record) -> str:
    return row_name(start, share["tag"])


def _title(asked: Record, start: str) -> str:
    return str(asked["starts"][start]["title"])


def _percent(share: Record) -> str:
    return f"{100 * share['share']:g} %"
