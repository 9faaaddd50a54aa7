"""The pictures of the page: growing noise, uncertainty of right and wrong answers, differences, rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedretina.report.svg import BLACK, BLUE, GREY, RIGHT, VERMILION, Chart, draw, name_rows
from fedretina.report.text import number
from fedretina_papers.compared import BINS
from fedretina_papers.line_chart import AXES, Series, line_chart
from fedretina_papers.measures import MAIN, MEASURES
from fedretina_papers.stored import Benchmark, Record


def noise(benchmark: Benchmark) -> Chart | None:
    """Figure 2c: mean macro AUC of the sites under growing Gaussian noise, a line a row; None where none was tried."""
    series = []
    for name, seeds in benchmark.runs.items():
        found = [curve for curve in (noise_curve(run) for run in seeds.values()) if curve]
        shared = sorted(set.intersection(*(set(curve) for curve in found))) if found else []
        if shared:
            by_seed = [[curve[variance] for variance in shared] for curve in found]
            series.append(Series(benchmark.title(name), shared, by_seed, name == benchmark.reference))
    return line_chart("noise", series, "variance of the noise on pixels in 0 to 1", "macro AUC, mean of the sites")


def validation(benchmark: Benchmark) -> Chart | None:
    """Mean validation AUC by round, a line a row."""
    series = []
    for name, seeds in benchmark.runs.items():
        curves = [[one["mean_auc"] for _, one in sorted(run["validation"].items())] for run in seeds.values()]
        xs, whole = _whole_rounds(curves)
        if xs:
            series.append(Series(benchmark.title(name), xs, whole, name == benchmark.reference))
    return line_chart("validation", series, "round", "validation AUC, mean of the sites")


def by_site(benchmark: Benchmark, key: str, label: str) -> Chart | None:
    """A figure of the reference by round, a line a site: "theta_by_round" or "weight_by_round"."""
    runs = benchmark.runs.get(benchmark.reference, {}).values()
    series = []
    for site in benchmark.sites:
        curves = [run["sites"].get(site, {}).get(key) or [] for run in runs]
        xs, whole = _whole_rounds(curves)
        if xs:
            series.append(Series(site, xs, whole, False))
    return line_chart(key, series, "round", label)


def uncertainty(benchmark: Benchmark, statistics: Record) -> Chart | None:
    """Figures 2a and 2b: how u is spread over the right and the wrong answers of the reference at each site."""
    sites = {site: statistics["uncertainty"].get(benchmark.reference, {}).get(site) for site in benchmark.sites}
    known = {site: spread for site, spread in sites.items() if spread is not None}
    if not known:
        return None
    edges = np.linspace(0, 1, BINS + 1)

    def paint(axes: Any) -> None:
        for at, spread in enumerate(known.values()):
            for side, colour, sign in (("right", BLUE, -1), ("wrong", VERMILION, 1)):  # the axis points downwards
                counts = np.asarray(spread[side], dtype=np.float64)
                if np.sum(counts):
                    heights = 0.42 * counts / np.max(counts)
                    label = f"{side} answers" if at == 0 else None
                    hatch = "////" if side == "wrong" else None
                    axes.bar(
                        edges[:-1],
                        sign * heights,
                        1 / BINS,
                        bottom=at,
                        align="edge",
                        color=colour,
                        edgecolor="white",
                        linewidth=0.5,
                        hatch=hatch,
                        label=label,
                    )
            axes.axhline(at, color=GREY, linewidth=0.6)
        name_rows(axes, list(known))
        axes.set_xlim(0, 1)
        axes.set_xlabel("uncertainty u")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))

    told = "; ".join(
        f"{site} {number(spread['median_right'])} and {number(spread['median_wrong'])}"
        for site, spread in known.items()
    )
    return draw(
        "uncertainty",
        f"Uncertainty of right and of wrong answers a site, each side by its own height; medians: {told}.",
        paint,
        height=0.7 + 0.75 * len(known),
        left=_room(known),
        right=1.5,
        width=AXES + _room(known) + 1.5,
    )


def differences(benchmark: Benchmark, statistics: Record, key: str = MAIN) -> Chart | None:
    """Reference less each row, mean of the sites: each seed, their mean, the intervals over patients and together."""
    rows = {
        benchmark.title(name): one["mean"]["measures"][key]
        for name, one in benchmark.compared(statistics)
        if one["mean"]["measures"][key]["difference"] is not None
    }
    if not rows:
        return None

    def paint(axes: Any) -> None:
        axes.axvline(0, color=BLACK, linewidth=1)
        for at, one in enumerate(rows.values()):
            drawn = one["patients"]
            if drawn is not None and drawn["low"] is not None:
                axes.plot([drawn["low"], drawn["high"]], [at, at], color=BLUE, linewidth=5, alpha=0.35, zorder=2)
            together = one["together"]
            if together is not None and together["low"] is not None:
                axes.plot([together["low"], together["high"]], [at, at], color=BLUE, linewidth=1.2, zorder=2)
            axes.scatter(one["by_seed"], [at] * len(one["by_seed"]), s=12, facecolors="none", edgecolors=GREY, zorder=3)
            axes.scatter([one["difference"]], [at], s=34, c=BLUE, zorder=4)
        name_rows(axes, list(rows))
        axes.set_xlabel(f"{MEASURES[key].title}: {benchmark.title(benchmark.reference)} less the row")

    told = "; ".join(f"{title} {number(one['difference'], 3)}" for title, one in rows.items())
    return draw(
        f"differences_{key}",
        f"Difference in {MEASURES[key].title} of {benchmark.title(benchmark.reference)} to each row, mean of the "
        f"sites: {told}.",
        paint,
        height=0.65 + 0.28 * len(rows),
        left=_room(rows),
        width=AXES + _room(rows) + RIGHT,
    )


def noise_curve(run: Record) -> dict[float, float]:
    """Mean AUC over the sites by variance, of the sites that were tried; empty where none was."""
    tried = [{point["variance"]: point["auc"] for point in site["noise"]} for site in run["sites"].values()]
    curves = [curve for curve in tried if curve and all(value is not None for value in curve.values())]
    if not curves:
        return {}
    shared = set.intersection(*(set(curve) for curve in curves))
    return {variance: float(np.mean([curve[variance] for curve in curves])) for variance in sorted(shared)}


def _whole_rounds(curves: Sequence[Sequence[float | None]]) -> tuple[list[int], list[list[float]]]:
    """The rounds, from 1, in which every seed has a value, and the values."""
    shortest = min(map(len, curves), default=0)
    table = np.array([curve[:shortest] for curve in curves], dtype=np.float64)  # None becomes NaN
    whole = np.flatnonzero(np.all(np.isfinite(table), axis=0)) if shortest else np.arange(0)
    return (whole + 1).tolist(), table[:, whole].tolist() if shortest else []


def _room(labels: Mapping[str, Any]) -> float:
    return 0.3 + 0.085 * max(len(label) for label in labels)
