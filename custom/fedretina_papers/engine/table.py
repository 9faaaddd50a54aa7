"""A table as a specification: its lines, and columns that say which figure they hold and how it is printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import NamedTuple

from fedretina.report.text import NONE, count, number, percent, size
from fedretina_papers.engine.records import Figure, OfRun, Records
from fedretina_papers.markdown import NOT_RUN, chance, interval, spread, table
from fedretina_papers.statistics.paired_seeds import seed_test, smallest_seen

Show = Callable[[Sequence[float], int], str]
"""Prints a figure's values over the seeds with so many decimals."""


class Line(NamedTuple):
    """A line of a table.

    Attributes:
        lead: Its first cells, text.
        row: The row of the study whose figures it holds.
        against: The row that is subtracted in columns of differences.
    """

    lead: tuple[str, ...]
    row: str
    against: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: In print, with its unit.
        figure: What it holds.
        sites: How sites come together, see `Records.joined`.
        show: How values over the seeds are printed.
        places: Decimals.
        scale: What the figure is multiplied by to have its unit.
        difference: Whether it holds the line's row less the row that it stands against, paired by seed and site.
        better: "highest" or "lowest" to print the best mean bold.
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
    told: Callable[[Line], str] | None = None

    def values(self, records: Records, line: Line) -> list[float]:
        """The figure of a line for each seed, in the column's unit."""
        found = (
            records.gaps(line.row, line.against, self.figure, self.sites)
            if self.difference
            else records.values(line.row, self.figure, self.sites)
        )
        return [self.scale * value for value in found]

    def cell(self, records: Records, line: Line) -> str:
        """What stands in a line."""
        if self.told is not None:
            return self.told(line)
        if not self.difference and line.row not in records:
            return NOT_RUN
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


def paired(figure: Figure) -> list[Column]:
    """The paired test of a difference over seeds or draws: interval, p, and the smallest that could have been seen."""
    column = Column("", figure, difference=True)
    shows = {"95 % over seeds": span, "p over seeds": p_value, "smallest that could be seen": smallest}
    return [replace(column, title=title, show=show) for title, show in shows.items()]


def render(records: Records, lead: Sequence[str], lines: Sequence[Line], columns: Sequence[Column]) -> list[str]:
    """The table in Markdown.

    Args:
        records: What was run.
        lead: Titles of the lines' first cells.
        lines: Its lines; those whose row was not run say so.
        columns: Its columns.
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
    return table([*lead, *(column.title for column in columns)], cells)


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


def span(values: Sequence[float], places: int) -> str:
    """The interval of the mean difference over seeds."""
    return interval(seed_test(values)._asdict(), places)


def p_value(values: Sequence[float], _places: int) -> str:
    """The p of the paired t test over seeds."""
    return chance(seed_test(values).p)


def smallest(values: Sequence[float], places: int) -> str:
    """The smallest true difference that so many seeds with such a spread show in four of five studies."""
    return number(smallest_seen(len(values), seed_test(values).sd), places)
