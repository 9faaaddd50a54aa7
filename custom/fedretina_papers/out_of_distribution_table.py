"""The table of images that no site's grades are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from fedretina.report.text import count
from fedretina_papers.markdown import NOT_RUN, listed, sentence_case, several, spread, table
from fedretina_papers.statistics.site_mean import BY_SIZE, site_mean, worst_site
from fedretina_papers.stored import Benchmark, Record

_FIGURES = (("AUROC", "auroc"), ("AUPR", "aupr"), ("FPR95", "fpr95"))
_DISEASE, _KIND = "unseen disease", "images of another kind"


def out_of_distribution_table(benchmark: Benchmark, label: Callable[[str], str] | None = None) -> list[str]:
    """Whether each row's uncertainty tells images of ungraded diseases from a site's own test images.

    Args:
        benchmark: Stored runs; those without the measurement say so.
        label: What a row is called; its title by default.
    """
    sets = list(benchmark.plan.get("strangers") or ())
    found = [first for name in sets if (first := _any(benchmark, name)) is not None]
    # A set without classes of its own is no disease: another modality, or what got into a folder by mistake.
    kinds = {_DISEASE if first["diseases"] else _KIND for first in found} or {_DISEASE}
    lines = [f"## {sentence_case(' and '.join(sorted(kinds, reverse=True)))}", ""]
    if not sets:
        return [
            *lines,
            "Not asked: the plan names no set of images of diseases that no site grades (`strangers`).",
            "",
        ]
    for name in sets:
        first = _any(benchmark, name)
        if first is None:
            lines += [f"**{name}**: {NOT_RUN}.", ""]
            continue
        diseases = list(first["diseases"])
        sizes = [f"{disease} {count(one['outside'])}" for disease, one in first["diseases"].items()]
        told = f" ({listed(sizes)})" if sizes else ""
        drawn = ", phantoms" if first["synthetic"] else ""
        head = ["row", *(title for title, _ in _FIGURES), "AUROC by size", "AUROC, worst site"]
        head += [f"AUROC, {disease}" for disease in diseases]
        rows = []
        for row in benchmark.plan["rows"]:
            values = [_over_seeds(benchmark, row, name, _figure(key)) for _, key in _FIGURES]
            values += [_by_size(benchmark, row, name), _worst(benchmark, row, name)]
            values += [_over_seeds(benchmark, row, name, _of_disease(disease)) for disease in diseases]
            cells = [spread(one) for one in values] if any(values) else [NOT_RUN] * len(values)
            rows.append([(label or benchmark.title)(row), *cells])
        lines += [
            f"**{name}**: {several(first['outside'], 'image')}{told}{drawn}, none of which trained anything; inside "
            "are each site's own test images. Plain mean of the sites, over seeds.",
            "",
            *table(head, rows),
        ]
    return [
        *lines,
        "AUROC is the chance that an out-of-distribution image is less certain than an own one: 0.5 tells nothing, and "
        "below it the model is more certain of what it does not know. AUPR is the average precision of finding these "
        "images; chance gives their share. FPR95 is the share of them that pass where 95 % of the own images do; less "
        "is better.",
        "",
    ]


def _any(benchmark: Benchmark, name: str) -> Record | None:
    for seeds in benchmark.runs.values():
        for run in seeds.values():
            for site in run["sites"].values():
                found: Record | None = site.get("strangers", {}).get(name)
                if found is not None:
                    return found
    return None


def _figure(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda one: one[key]


def _of_disease(disease: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda one: one["diseases"].get(disease, {}).get("auroc")


def _sites(benchmark: Benchmark, row: str, name: str) -> list[dict[str, Record]]:
    """Sites that were asked about the set, by seed."""
    runs = benchmark.runs.get(row, {}).values()
    return [{at: site for at, site in run["sites"].items() if name in site.get("strangers", {})} for run in runs]


def _by_size(benchmark: Benchmark, row: str, name: str) -> list[float]:
    means = []
    for sites in _sites(benchmark, row, name):
        values = {at: site["strangers"][name]["auroc"] for at, site in sites.items()}
        over = site_mean(values, {at: int(site["images"]["test"]) for at, site in sites.items()}, BY_SIZE)
        means += [] if over.value is None else [over.value]
    return means


def _worst(benchmark: Benchmark, row: str, name: str) -> list[float]:
    """For each seed the site that notices these images least."""
    found = (
        worst_site({at: site["strangers"][name]["auroc"] for at, site in sites.items()})
        for sites in _sites(benchmark, row, name)
    )
    return [one.value for one in found if one is not None]


def _over_seeds(
    benchmark: Benchmark, row: str, name: str, value: Callable[[Mapping[str, Any]], float | None]
) -> list[float]:
    means = []
    for run in benchmark.runs.get(row, {}).values():
        there = [site["strangers"][name] for site in run["sites"].values() if name in site.get("strangers", {})]
        known = [found for found in map(value, there) if found is not None]
        if known:
            means.append(fmean(known))
    return means
