"""Sentences of the page that are read off the figures."""

from __future__ import annotations

from statistics import fmean

from fedretina.report.text import count, number
from fedretina_papers.charts import noise_curve
from fedretina_papers.engine.records import Records
from fedretina_papers.markdown import signed
from fedretina_papers.measures import MAIN
from fedretina_papers.stored import Benchmark, Record

_ALL_IMAGES = 1_000_000  # the plan's way to say: no limit


def ranking_words(benchmark: Benchmark, records: Records, names: list[str]) -> list[str]:
    """Who stands highest in macro AUC over the mean of the sites, and how that compares with the spread of seeds."""
    means = {name: found for name in names if (found := records.values(name, f"test.{MAIN}"))}
    if len(means) < 2:
        return []
    order = sorted(means, key=lambda name: fmean(means[name]), reverse=True)
    best, reference = order[0], benchmark.reference
    lines = [
        f"Highest mean of the sites: {benchmark.title(best)}, {number(fmean(means[best]), 3)}. The rows' means lie "
        f"between {number(fmean(means[order[-1]]), 3)} and {number(fmean(means[best]), 3)}; a row's own seeds lie up "
        f"to {number(max(max(values) - min(values) for values in means.values()), 3)} apart."
    ]
    if reference in means and best != reference:
        gap = fmean(means[reference]) - fmean(means[best])
        lines.append(
            f"{benchmark.title(reference)} stands at {number(fmean(means[reference]), 3)}, place "
            f"{order.index(reference) + 1} of {len(order)}, {signed(gap)} to the highest."
        )
    lines.append("Order alone proves nothing: see the comparisons below.")
    return [" ".join(lines), ""]


def noise_words(benchmark: Benchmark) -> list[str]:
    """How far macro AUC falls from the mildest to the strongest noise."""
    falls = {}
    for name, seeds in benchmark.runs.items():
        found = [fall for run in seeds.values() if (fall := _fall(run)) is not None]
        if found:
            falls[name] = fmean(found)
    if not falls:
        return ["The noise study was not run.", ""]
    order = sorted(falls, key=lambda name: falls[name])
    told = f"Least is lost by {benchmark.title(order[0])} ({number(falls[order[0]], 3)})"
    if len(order) > 1:
        told += f", most by {benchmark.title(order[-1])} ({number(falls[order[-1]], 3)})"
    if benchmark.reference in falls:
        place = order.index(benchmark.reference) + 1
        told += (
            f"; {benchmark.title(benchmark.reference)} loses {number(falls[benchmark.reference], 3)}, place {place} of "
            f"{len(order)}"
        )
    few = benchmark.plan.get("noise_images")
    limit = f" Answered were at most {count(few)} test images a site." if few and few < _ALL_IMAGES else ""
    return [f"{told}. A row that is near chance without noise has little to lose.{limit}", ""]


def _fall(run: Record) -> float | None:
    curve = noise_curve(run)
    return curve[min(curve)] - curve[max(curve)] if len(curve) > 1 else None
