"""A chart of lines with a band over seeds, as the benchmarks' pages draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedretina.report.svg import (
    BLUE,
    GREEN,
    GREY,
    HEIGHT,
    LEFT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Chart,
    draw,
    whole_numbers,
)
from fedretina.report.text import number

AXES = 3.7
"""Inches between the axes' ends, whatever stands beside them."""
_COLOURS = (VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))


class Series(NamedTuple):
    """A line of a picture.

    Attributes:
        label: In the legend.
        xs: Where it has values.
        by_seed: Its values, a row a seed.
        bold: Whether it stands out.
    """

    label: str
    xs: Sequence[float]
    by_seed: Sequence[Sequence[float]]
    bold: bool


def line_chart(
    name: str, series: Sequence[Series], over: str, label: str, ticks: Mapping[float, str] | None = None
) -> Chart | None:
    """Lines of means over seeds, each with a band from the lowest seed to the highest; None without any.

    Args:
        name: Of the picture.
        series: The lines.
        over: What they run over.
        label: What they show.
        ticks: Marks of a logarithmic horizontal axis, by value; None for a plain axis.
    """
    if not series:
        return None
    styles: Mapping[str, tuple[str, Any]] = {
        one.label: (_COLOURS[at % len(_COLOURS)], _DASHES[at // len(_COLOURS) % len(_DASHES)])
        for at, one in enumerate(one for one in series if not one.bold)
    }
    ranked = sorted(series, key=_last, reverse=True)  # the legend stands in the order of the lines' ends

    def paint(axes: Any) -> None:
        for one in ranked:
            colour, dash = (BLUE, "solid") if one.bold else styles[one.label]
            values = np.asarray(one.by_seed, dtype=np.float64)
            if len(values) > 1:
                axes.fill_between(
                    one.xs, np.min(values, axis=0), np.max(values, axis=0), color=colour, alpha=0.1, linewidth=0
                )
            axes.plot(
                one.xs,
                np.mean(values, axis=0),
                color=colour,
                linestyle=dash,
                linewidth=2.8 if one.bold else 1.5,
                label=one.label,
                zorder=4 if one.bold else 3,
                marker="o" if len(one.xs) <= 12 else None,
                markersize=3,
            )
        if ticks is not None:
            axes.set_xscale("log")
            axes.set_xticks(list(ticks), list(ticks.values()))
            axes.minorticks_off()
        if over == "round":
            axes.xaxis.set_major_locator(whole_numbers())
        axes.set_xlabel(over)
        axes.set_ylabel(label)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelspacing=0.35)

    ends = "; ".join(f"{one.label} {number(_first(one), 3)} to {number(_last(one), 3)}" for one in ranked)
    longest = max(len(one.label) for one in series)
    room = 0.6 + 0.085 * longest
    return draw(
        name,
        f"{label} by {over}, from first to last: {ends}.",
        paint,
        height=max(HEIGHT, 0.5 + 0.19 * len(series)),
        right=room,
        width=LEFT + AXES + room,
    )


def _first(one: Series) -> float:
    return float(np.mean([line[0] for line in one.by_seed]))


def _last(one: Series) -> float:
    return float(np.mean([line[-1] for line in one.by_seed]))
