"""An empty chart in the report's style, and its way into the page: small, deterministic SVG with text as text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

# Okabe and Ito's palette without its yellow, which is faint on white; colour-blind readers tell these apart.
BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#e69f00",
    "#cc79a7",
    "#56b4e9",
    "#1f2933",
)
GREY, FAINT = "#5b6770", "#d9dee2"
WIDTH, HEIGHT = 4.6, 3.1  # inches of 72 points
LEFT, RIGHT, BOTTOM, TOP = 0.72, 0.2, 0.52, 0.1  # margins in inches: matplotlib's own layout takes half of the time
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.parse_math": False,  # a site's name may hold dollar signs
    "text.color": BLACK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": BLACK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.6,
}


class Chart(NamedTuple):
    """A chart for a page.

    Attributes:
        svg: An `<svg>` element that needs nothing from outside; its text is escaped.
        alt: What it shows, in a sentence with numbers, for those who cannot see it.
    """

    svg: str
    alt: str


def draw(
    name: str,
    alt: str,
    paint: Callable[[Any], None],
    height: float = HEIGHT,
    left: float = LEFT,
    right: float = RIGHT,
    width: float = WIDTH,
) -> Chart:
    """Let `paint` draw on a pair of axes and give the chart.

    Args:
        name: Of the chart, unique on a page: it prefixes every id, so that charts on one page stay apart.
        alt: See `Chart`.
        paint: Draws on matplotlib axes.
        height: In inches.
        left: Room for the labels of the vertical axis, in inches.
        right: Room beside the axes, for a legend, in inches.
        width: Of the whole picture, in inches.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height))
        figure.patch.set_visible(False)
        box = (left / width, BOTTOM / height, 1 - (left + right) / width, 1 - (BOTTOM + TOP) / height)
        axes = figure.add_axes(box, facecolor="none")
        paint(axes)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(file, metadata=nothing)
    return Chart(_inlined(file.getvalue(), name, alt), alt)


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """Let the vertical axis hold named rows, the first one on top, in place of numbers."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def whole_numbers(most: int = 8, least: int = 1) -> Any:
    """A locator that marks an axis at whole numbers alone, at about `most` of them."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=most, integer=True, min_n_ticks=least)


def _inlined(document: str, name: str, alt: str) -> str:
    svg = document[document.index("<svg") :].replace("xlink:href=", "href=")
    svg = re.sub(r"<metadata>.*?</metadata>\s*|<style.*?</style>\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"""(?:href="|url\()#([^")]+)""", svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", svg)
    svg = re.sub(r"""(href="|url\()#""", rf"\1#{name}-", svg)
    # The page's own typeface: the size stays, the family is left to the style sheet.
    svg = re.sub(r"font: (?:[\w ]+ )?([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box.group() if box else ""} role="img" aria-label="{escape(alt)}">'
    )
    return re.sub(r"^<svg[^>]*>", lambda _: head, svg, count=1).strip()
