"""The report's charts over the rounds of a run: a line a site, and what stands above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedretina.report.numbers import number
from fedretina.report.svg import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Chart,
    draw,
    whole_numbers,
)

Values = Sequence[float | None]
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)  # black is the mean
DASHES = ("", "5 2", "1.5 1.5", "7 2 1.5 2", "", "5 2", "1.5 1.5")
_MANY = "#b9c2c9"


class Line(NamedTuple):
    """A line over rounds.

    Attributes:
        name: For the legend; the page escapes it.
        values: One a round, None where there is none.
        colour: Hex.
        dash: As SVG's `stroke-dasharray`; empty for a whole line.
        hollow: Rounds whose point is hollow.
        bold: Whether the line stands out.
    """

    name: str
    values: Values
    colour: str
    dash: str = ""
    hollow: tuple[int, ...] = ()
    bold: bool = False


def site_lines(values: Mapping[str, Values], mean: Values | None = None) -> list[Line]:
    """A line a site and their mean; above seven sites the lines are grey, for nobody tells more colours apart."""
    few = len(values) <= len(COLOURS)
    lines = [
        Line(site, column, COLOURS[at] if few else _MANY, DASHES[at] if few else "")
        for at, (site, column) in enumerate(sorted(values.items()))
    ]
    return lines if mean is None else [*lines, Line("mean", mean, BLACK, bold=True)]


def legend(lines: Sequence[Line]) -> list[Line]:
    """What stands above a chart of sites: every line by name, or, where they are grey, what grey means."""
    named = [line for line in lines if line.colour != _MANY]
    grey = [line for line in lines if line.colour == _MANY][:1]
    return [*(line._replace(name="each site") for line in grey), *named]


def rounds(
    name: str,
    steps: Sequence[str],
    lines: Sequence[Line],
    label: str,
    chosen: str | None = None,
    unit: bool = False,
    over: str = "round",
) -> Chart | None:
    """Lines over the rounds; None where there is nothing to draw.

    Args:
        name: Of the chart.
        steps: Names of the rounds.
        lines: What is drawn.
        label: Of the vertical axis.
        chosen: The round to mark.
        unit: Whether values lie in [0, 1] and the axis should show where in it.
        over: What is counted on the horizontal axis.
    """
    drawn = [line for line in lines if any(value is not None for value in line.values)]
    if not drawn:
        return None

    def paint(axes: Any) -> None:
        for line in drawn:
            points = [(at, value) for at, value in enumerate(line.values) if value is not None]
            xs, ys = [at for at, _ in points], [value for _, value in points]
            pattern = (0, tuple(float(part) for part in line.dash.split())) if line.dash else "solid"
            axes.plot(xs, ys, color=line.colour, linestyle=pattern, linewidth=2.4 if line.bold else 1.5, zorder=2)
            if len(steps) <= 40:
                faces = ["white" if at in line.hollow else line.colour for at in xs]
                axes.scatter(xs, ys, s=18, c=faces, edgecolors=line.colour, linewidths=1.2, zorder=3)
        if chosen in steps:
            axes.axvline(steps.index(chosen), color=GREY, linestyle=(0, (3, 2)), linewidth=1.2, zorder=1)
        _round_ticks(axes, len(steps), over)
        if unit:
            values = [value for line in drawn for value in line.values if value is not None]
            axes.set_ylim(max(0.0, min(values) - 0.05), min(1.02, max(values) + 0.05))
        axes.set_ylabel(label)

    ends = [(line.name, [value for value in line.values if value is not None]) for line in drawn]
    told = "; ".join(f"{title} from {number(found[0])} to {number(found[-1])}" for title, found in ends[-4:])
    return draw(name, f"{label} over {len(steps)} {over}s: {told}.", paint)


def _round_ticks(axes: Any, steps: int, over: str) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_xlim(-0.5 if steps == 1 else -0.03 * steps, steps - 0.5 if steps == 1 else steps - 1 + 0.03 * steps)
    axes.xaxis.set_major_locator(whole_numbers())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value + 1:.0f}" if 0 <= value < steps else ""))
    axes.set_xlabel(over)
