"""FedEE's pictures from our runs: accuracy as cases are referred, cases to refer, u inside and outside, site means."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np

from fedretina.report.svg import BLUE, GREY, ORANGE, VERMILION, Chart, draw
from fedretina.report.text import number
from fedretina_papers.engine.records import BY_SIZE, OfRun
from fedretina_papers.fedee_figures import BINS, RATES
from fedretina_papers.fedee_results import ETAS, FedeeResults
from fedretina_papers.line_chart import Series, line_chart

_LINES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1.5, 2)), (0, (1, 3)))
_SIDES = ((BLUE, ""), (ORANGE, "////"), (VERMILION, "xxxx"), (GREY, "...."))


def selective_chart(results: FedeeResults) -> Chart | None:
    """Figure 4: the metric of the kept answers as the least sure are referred, by the sites' sizes, under FedAvg."""
    series = []
    for name in results.shown("FedAvg"):
        figures = [results.selective(at) for at in range(len(RATES))]
        by_seed = results.records.courses(name, [(figure, BY_SIZE) for figure in figures])
        if by_seed:
            series.append(Series(results.label(name), [100 * rate for rate in RATES], by_seed, name == _own(results)))
    return line_chart("selective", series, "cases referred (%)", _metric(results))


def eta_chart(results: FedeeResults, key: str) -> Chart | None:
    """Figure 11: a figure over sites, from the plain mean to the one by size, under FedAvg."""
    series = []
    for name in results.shown("FedAvg"):
        by_seed = results.records.courses(name, [(results.figure(key), eta) for eta in ETAS])
        if by_seed:
            series.append(Series(results.label(name), list(ETAS), by_seed, name == _own(results)))
    return line_chart(f"eta_{key}", series, "η, from plain (1) to by size (e)", results.titles[key])


def refer_chart(results: FedeeResults) -> Chart | None:
    """Figure 5: share of cases to refer for each accuracy, all sites together, under FedAvg."""
    names = results.shown("FedAvg")
    levels = results.figures["asked"]["level"]
    if not names:
        return None
    shares = {
        level: [100 * fmean(results.records.values(name, OfRun(f"refer.{level}.with_doctor"))) for name in names]
        for level in levels
    }

    def paint(axes: Any) -> None:
        for at, (level, values) in enumerate(shares.items()):
            height = 0.8 / len(shares)
            colour, hatch = _SIDES[at % len(_SIDES)]
            places = [one - 0.4 + (at + 0.5) * height for one in range(len(names))]
            axes.barh(
                places, values, height, color=colour, edgecolor="white", hatch=hatch, label=f"{100 * level:g} % right"
            )
        axes.set_yticks(range(len(names)), [results.label(name) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel("cases to refer (%)")
        axes.grid(visible=False, axis="y")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))

    told = "; ".join(
        f"{100 * level:g} %: "
        + ", ".join(f"{results.label(n)} {number(v, 1)}" for n, v in zip(names, values, strict=True))
        for level, values in shares.items()
    )
    return draw(
        "refer", f"Cases to refer in per cent, by method. {told}.", paint, left=1.75, right=1.3, width=6.6, height=2.9
    )


def out_of_distribution_chart(results: FedeeResults) -> Chart | None:
    """Figure 6: u of the reference on own test images, other sites' images and each out-of-distribution set."""
    sums: dict[str, np.ndarray] = {}
    for run in results.figures["runs"].get(_own(results), {}).values():
        for site in run["sites"].values():
            for kind, one in site["u"].items():
                sums[kind] = sums.get(kind, np.zeros(BINS)) + np.asarray(one["counts"], dtype=np.float64)
    if len(sums) < 2:
        return None
    sums = {kind: sums[kind] for kind in ("own", *(kind for kind in sums if kind != "own"))}
    edges = np.linspace(0, 1, BINS + 1)
    shares = {kind: counts / np.sum(counts) for kind, counts in sums.items()}

    def paint(axes: Any) -> None:
        for at, (kind, share) in enumerate(shares.items()):
            axes.step(
                edges,
                [*share, share[-1]],
                where="post",
                label=kind,
                color=_SIDES[at % len(_SIDES)][0],
                linestyle=_LINES[at % len(_LINES)],
            )
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("uncertainty u")
        axes.set_ylabel("share of the images")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))

    middle = {kind: float(edges[int(np.searchsorted(np.cumsum(share), 0.5))]) for kind, share in shares.items()}
    told = "; ".join(f"{kind}: half of the images from {number(value)} up" for kind, value in middle.items())
    title = f"How u is spread over own and out-of-distribution images. {told}."
    return draw("strangers", title, paint, right=1.5, width=6.0)


def _own(results: FedeeResults) -> str:
    return results.benchmark.reference


def _metric(results: FedeeResults) -> str:
    return results.metric.replace("_", " ") + " of the kept cases"
