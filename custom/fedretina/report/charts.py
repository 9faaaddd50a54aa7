"""The charts of the reports, each from the part of the JSON record that it shows: of a model, or over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any, NamedTuple

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
    name_rows,
    whole_numbers,
)
from fedretina.report.text import number, percent
from fedretina.settings.scalars import UNCERTAINTY_BINS

_FEW_IMAGES = 5
_FINE = 1 / UNCERTAINTY_BINS
Values = Sequence[float | None]
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)  # black is the mean
DASHES = ("", "5 2", "1.5 1.5", "7 2 1.5 2", "", "5 2", "1.5 1.5")
_MANY = "#b9c2c9"


def reliability(name: str, bins: Mapping[str, Any]) -> Chart:
    """Accuracy against confidence, a point a bin with its area by its images; small bins hollow."""
    points = [
        (total / images, right / images, images)
        for images, right, total in zip(bins["images"], bins["right"], bins["confidence"], strict=True)
        if images
    ]
    most = max(images for *_, images in points)

    def paint(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        for claimed, right, images in points:
            axes.plot([claimed, claimed], [claimed, right], color=SKY, linewidth=3, solid_capstyle="butt", zorder=2)
            axes.scatter(
                [claimed],
                [right],
                s=18 + 110 * images / most,
                c="white" if images < _FEW_IMAGES else BLUE,
                edgecolors=BLUE,
                linewidths=1.2,
                zorder=3,
            )
        axes.set(
            xlim=(-0.02, 1.02), ylim=(-0.04, 1.04), xlabel="probability that it claims", ylabel="share that is right"
        )

    told = "; ".join(f"claimed {percent(claimed)}, right {percent(right)}" for claimed, right, _ in points)
    return draw(name, f"Reliability diagram of {sum(point[2] for point in points)} answers: {told}.", paint)


def uncertainty(name: str, bins: Mapping[str, Any], threshold: float | None) -> Chart:
    """Right answers upwards and wrong ones downwards over u, with the referral threshold."""
    edges = bins["edges"]
    wrong = bins["wrong"]
    right = [images - failed for images, failed in zip(bins["images"], wrong, strict=True)]
    widths = [high - low for low, high in pairwise(edges)]
    merged = max(widths) > _FINE + 1e-9
    # Wide bins would look like many images, so heights are images in a stretch of one fine bin.
    tall, deep = ([many * _FINE / width for many, width in zip(side, widths, strict=True)] for side in (right, wrong))

    def paint(axes: Any) -> None:
        axes.bar(edges[:-1], tall, widths, align="edge", color=BLUE, edgecolor="white", linewidth=0.6)
        axes.bar(
            edges[:-1],
            [-value for value in deep],
            widths,
            align="edge",
            color=VERMILION,
            edgecolor="white",
            linewidth=0.6,
            hatch="////",
        )
        axes.axhline(0, color=GREY, linewidth=0.8)
        if threshold is not None and 0 < threshold < 1:
            axes.axvline(threshold, color=BLACK, linestyle=(0, (4, 2)), linewidth=1.3)
        for words, at in (("right answers", 0.97), ("wrong answers", 0.03)):
            axes.text(
                0.02,
                at,
                words,
                transform=axes.transAxes,
                va="top" if at > 0.5 else "bottom",
                bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5},
            )
        top, bottom = (max([*side, 1]) * 1.12 for side in (tall, deep))
        axes.set(xlim=(-0.01, 1.01), ylim=(-bottom, top), xlabel="uncertainty u")
        axes.set_ylabel(f"images in {_FINE} of u" if merged else "images")
        axes.yaxis.set_major_locator(whole_numbers(6, 2))
        axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}")

    return draw(
        name,
        f"{sum(right)} right and {sum(wrong)} wrong answers by uncertainty; median bin of the right ones ends at "
        f"{number(_median_end(edges, right))}, of the wrong ones at {number(_median_end(edges, wrong))}.",
        paint,
    )


def risk_coverage(name: str, curve: Mapping[str, Sequence[float]], points: bool = False) -> Chart:
    """Error rate among the surest answers against the share kept."""
    coverage, risk = curve["coverage"], curve["risk"]

    def paint(axes: Any) -> None:
        axes.axhline(risk[-1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(coverage, risk, color=BLUE, marker="o" if points else None)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, max(max(risk) * 1.1, 0.1)))
        axes.set(xlabel="share of answers kept, surest first", ylabel="error rate among them")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %" if value >= 0 else "")

    half = min(range(len(coverage)), key=lambda at: abs(coverage[at] - 0.5))
    return draw(
        name,
        f"Error rate {percent(risk[-1])} over all answers, {percent(risk[half])} among the surest "
        f"{percent(coverage[half])}.",
        paint,
    )


def forest(
    name: str, label: str, rows: Sequence[tuple[str, Mapping[str, Any]]], mean: float | None, share: bool = False
) -> Chart | None:
    """A point and an interval per site, and their mean; None where no site has the figure."""
    known = [(site, figure) for site, figure in rows if figure.get("value") is not None]
    if not known:
        return None
    labels = [_label(site) for site, _ in known]

    def paint(axes: Any) -> None:
        for at, (_, figure) in enumerate(known):
            if figure.get("low") is not None and figure.get("high") is not None:
                axes.plot([figure["low"], figure["high"]], [at, at], color=BLUE, linewidth=2, zorder=2)
            axes.scatter([figure["value"]], [at], s=34, c=BLUE, zorder=3)
        if mean is not None:
            axes.axvline(mean, color=BLACK, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
        name_rows(axes, labels)
        axes.set_xlabel(label)
        lowest = min(
            value for _, figure in known for value in (figure["value"], figure.get("low")) if value is not None
        )
        axes.set_xlim((0 if share else min(0.45, lowest - 0.03)), 1.02)
        if share:
            axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")

    told = "; ".join(f"{site} {number(figure['value'])}" for site, figure in known)
    lines = [line for label in labels for line in label.split("\n")]
    return draw(
        name,
        f"{label} per site: {told}; mean {number(mean)}.",
        paint,
        height=0.65 + (0.3 if len(lines) == len(labels) else 0.38) * len(known),
        left=0.3 + 0.078 * max(map(len, lines)),
    )


def _median_end(edges: Sequence[float], images: Sequence[int]) -> float | None:
    total, seen = sum(images), 0
    for end, inside in zip(edges[1:], images, strict=True):
        seen += inside
        if inside and 2 * seen >= total:
            return end
    return None


def _label(name: str) -> str:
    """A site's name in two lines at most; of one that is longer the end, in which clinics of one hospital differ."""
    first, *rest = wrap(name, 24)
    return "\n".join([first, *rest] if len(rest) < 2 else [first, f"…{name[-23:]}"])


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
    """A line per site in the order of `values`, and their mean; above seven sites all grey: nobody tells more apart."""
    few = len(values) <= len(COLOURS)
    lines = [
        Line(site, column, COLOURS[at] if few else _MANY, DASHES[at] if few else "")
        for at, (site, column) in enumerate(values.items())
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
