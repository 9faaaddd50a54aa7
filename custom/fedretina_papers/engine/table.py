"""A table as a specification: its lines, and columns that say which figure they hold and how it is printed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, pstdev
from typing import NamedTuple, TypeVar

from fedretina.report.text import NONE, count, number, percent, size
from fedretina_papers.engine.records import Figure, OfRun, Records
from fedretina_papers.markdown import NOT_RUN, spread, table
from fedretina_papers.statistics.paired_seeds import seed_test

Show = Callable[[Sequence[float], int], str]
"""Prints a figure's values over the seeds with so many decimals."""
_Thing = TypeVar("_Thing")


class Line(NamedTuple):
    """A line of a table.

    Attributes:
        lead: Its first cells, text.
        row: The row of the study whose figures it holds.
        against: The row that is subtracted in columns of differences.
        figure: What stands for `{}` in the figures of its columns, where lines are of figures.
    """

    lead: tuple[str, ...]
    row: str
    against: str = ""
    figure: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: In print, with its unit.
        figure: What it holds; `{}` in its place is the line's.
        sites: How sites come together, see `Records.joined`.
        show: How values over the seeds are printed.
        places: Decimals.
        scale: What the figure is multiplied by to have its unit.
        difference: Whether it holds the line's row less the row that it stands against, paired by seed and site.
        better: "highest" or "lowest" to print the best mean bold.
        row: Whose, where columns are of rows: `{}` is the line's.
        unrun: What stands in a line whose row was not run.
        told: Instead of all this, a cell that is told of a line, such as what a paper prints.
    """

    title: str
    figure: Figure = ""
    sites: str | float = "mean"
    show: Show = spread
    places: int = 3
    scale: float = 1
    difference: bool = False
    better: str = ""
    row: str = "{}"
    unrun: str = NOT_RUN
    told: Callable[[Line], str] | None = None

    def values(self, records: Records, line: Line) -> list[float]:
        """The figure of a line for each seed, in the column's unit."""
        row = self.row.format(line.row)
        figure = self.figure.format(line.figure) if isinstance(self.figure, str) else self.figure
        found = (
            records.gaps(row, self.row.format(line.against), figure, self.sites)
            if self.difference
            else records.values(row, figure, self.sites)
        )
        return [self.scale * value for value in found]

    def cell(self, records: Records, line: Line) -> str:
        """What stands in a line."""
        if self.told is not None:
            return self.told(line)
        if not self.difference and self.row.format(line.row) not in records:
            return self.unrun
        return self.show(self.values(records, line), self.places)


def by_site(records: Records, column: Column, mean: str = "mean of the sites") -> list[Column]:
    """A column per site, and the one of all of them behind.

    Args:
        records: What was run.
        column: The column; its title is not read.
        mean: Title of the last; none where it is empty.
    """
    each = [replace(column, title=site, sites=site) for site in records.order]
    return [*each, *([replace(column, title=mean)] if mean else [])]


def render(
    records: Records,
    lead: Sequence[str],
    lines: Sequence[Line],
    columns: Sequence[Column],
    right: Collection[int] | None = None,
) -> list[str]:
    """The table in Markdown.

    Args:
        records: What was run.
        lead: Titles of the lines' first cells.
        lines: Its lines; those whose row was not run say so.
        columns: Its columns.
        right: Columns of figures, see `markdown.table`.
    """
    cells = [[*line.lead, *(column.cell(records, line) for column in columns)] for line in lines]
    for at, column in enumerate(columns, len(lead)):
        if column.better:
            means = [fmean(found) if (found := column.values(records, line)) else None for line in lines]
            known = [mean for mean in means if mean is not None]
            best = (max if column.better == "highest" else min)(known, default=None)
            for row, mean in zip(cells, means, strict=True):
                if mean is not None and mean == best:
                    row[at] = f"**{row[at]}**"
    return table([*lead, *(column.title for column in columns)], cells, right)


def listing(
    found: Iterable[_Thing], columns: Mapping[str, Callable[[_Thing], str]], right: Collection[int] | None = None
) -> list[str]:
    """A table with a line for each thing that was counted, such as a site, where nothing is joined over seeds.

    Args:
        found: The things.
        columns: What is told of each, by title.
        right: Columns of figures, see `markdown.table`.
    """
    return table(list(columns), [[tell(one) for tell in columns.values()] for one in found], right)


def mean_sd(values: Sequence[float], places: int) -> str:
    """Mean and population standard deviation, as FedEE writes them; the value alone of one."""
    if not values:
        return NONE
    mean = number(fmean(values), places)
    return mean if len(values) == 1 else f"{mean} ± {number(pstdev(values), places)}"


def steady(values: Sequence[float], places: int) -> str:
    """Mean with its spread; without the brackets where all seeds print the same, as bytes do."""
    alike = len({number(one, places) for one in values}) == 1
    return spread(values[:1] if alike else values, places)


def mean_number(values: Sequence[float], places: int) -> str:
    """The mean."""
    return number(fmean(values) if values else None, places)


def median_number(values: Sequence[float], places: int) -> str:
    """The median, for figures of which one run may be many times another."""
    return number(median(values) if values else None, places)


def mean_percent(values: Sequence[float], _places: int) -> str:
    """The mean of a share, as per cent."""
    return percent(fmean(values) if values else None)


def mean_count(values: Sequence[float], _places: int) -> str:
    """The mean as a whole number."""
    return count(round(fmean(values))) if values else NONE


def passes_told(values: Sequence[float], usual: float) -> str:
    """Mean passes over a site's training images, marked where a row has more than are usual."""
    told = mean_count(values, 0)
    return f"{told} \\*" if values and max(values) > usual else told


def bytes_told(values: Sequence[float], _places: int = 0) -> str:
    """The mean as a size in print."""
    return size(fmean(values)) if values else NONE


def taken(records: Records) -> list[Column]:
    """What rows of the papers' tables took: passes over a site's training images, and bytes that all sites sent.

    Rows with more passes than the network that trains alone in the fewest are marked.

    Args:
        records: Of whole runs; the table's own may be others.
    """
    passes, sent = OfRun("passes")(records), OfRun("bytes_up")(records)
    trains = passes[(passes > 0) & ~(OfRun("loop_only")(records) > 0)]  # rows in one place are not alone
    alone = trains[sent.reindex(trains.index) == 0]
    usual = float((trains if alone.empty else alone).min()) if len(trains) else 0.0

    def told(figure: OfRun, show: Callable[[Sequence[float]], str]) -> Callable[[Line], str]:
        return lambda line: show(records.values(line.row, figure)) if line.row in records else NOT_RUN

    return [
        Column("training passes", told=told(OfRun("passes"), lambda values: passes_told(values, usual))),
        Column("sent by all sites", told=told(OfRun("bytes_up"), bytes_told)),
    ]


def of_both(records: Records, columns: Sequence[Column]) -> list[Column]:
    """The same columns for two rows: a line's own and the one that it stands against."""

    def told(column: Column) -> Callable[[Line], str]:
        return lambda line: " and ".join(
            column.cell(records, line._replace(row=row)) for row in (line.row, line.against)
        )

    return [Column(f"{column.title}, both", told=told(column)) for column in columns]


def seeds(values: Sequence[float], _places: int) -> str:
    """How many seeds have the figure."""
    return str(len(values))


def apart(values: Sequence[float], places: int) -> str:
    """The mean difference with the 95 % interval of Student's paired t test; alone where there is no test."""
    test = seed_test(values)
    mean = NONE if test.mean is None else f"{test.mean:+.{places}f}"
    bounds = () if test.low is None or test.high is None else (test.low, test.high)
    return f"{mean} ({' to '.join(f'{bound:+.{places}f}' for bound in bounds)})" if bounds else mean
