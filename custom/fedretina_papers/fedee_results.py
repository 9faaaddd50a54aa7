"""FedEE's stored figures over sites and seeds: by size, plain, between, and at the worst site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from fedretina.report.text import NONE, number
from fedretina_papers.fedee_figures import PAPER_RATE, RATES, read_fedee_figures
from fedretina_papers.published_fedee import Printed
from fedretina_papers.statistics.eta_mean import BY_SIZE, PLAIN, eta_mean, worst_site
from fedretina_papers.stored import Benchmark, read_benchmark

SiteFigure = Callable[[Mapping[str, Any]], float | None]
HIGHER = {"accuracy", "misdetection", "misdetection_fedee", "selective"}
"""Figures of which more is better."""


class OverSeeds(NamedTuple):
    """A figure of a row over its seeds.

    Attributes:
        values: By seed.
        missing: Sites without the figure, over all seeds; they are in no mean.
        cells: Sites times seeds.
    """

    values: Mapping[int, float]
    missing: int
    cells: int

    @property
    def mean(self) -> float | None:
        """Over seeds; None without any."""
        return fmean(self.values.values()) if self.values else None

    def cell(self, places: int = 3) -> str:
        """Mean and population standard deviation over seeds, as the paper writes them."""
        return spoken(list(self.values.values()), places)


class FedeeResults(NamedTuple):
    """Stored runs with FedEE's figures.

    Attributes:
        benchmark: Plan and records.
        figures: As stored in `fedee.json`.
    """

    benchmark: Benchmark
    figures: Mapping[str, Any]

    @property
    def printed(self) -> str | None:
        """The paper's data set that ours stand beside; None for none."""
        found = self.benchmark.plan.get("printed")
        return None if found is None else str(found)

    @property
    def unit(self) -> str:
        """What stands for a patient."""
        return str(self.benchmark.plan.get("unit") or "patient")

    def figure(self, key: str) -> SiteFigure:
        """How a figure of a site is read: "accuracy" and "selective" follow the plan's metric."""
        metric = str(self.benchmark.plan.get("metric") or "accuracy")
        if key == "accuracy":
            return lambda site: _number(site[metric])
        if key == "selective":
            return self.selective(RATES.index(PAPER_RATE))
        return lambda site: _number(site[key])

    def selective(self, at: int) -> SiteFigure:
        """The plan's metric when the share `RATES[at]` was referred."""
        metric = str(self.benchmark.plan.get("metric") or "accuracy")
        return lambda site: _number(site["selective"][metric][at])

    def runs(self, name: str) -> Mapping[int, Mapping[str, Any]]:
        """Figures of a row's runs by seed; empty where it was not run."""
        there = self.benchmark.runs.get(name, {})
        return {seed: self.figures["runs"][name][str(seed)] for seed in sorted(there)}

    def over_seeds(self, name: str, figure: SiteFigure, eta: float = BY_SIZE) -> OverSeeds:
        """A figure over sites, for each seed of a row.

        Args:
            name: The row.
            figure: Reads it from a site's figures.
            eta: e weighs sites by their test images, 1 weighs them alike.
        """
        values, missing, cells = {}, 0, 0
        for seed, run in self.runs(name).items():
            sites = {site: figure(one) for site, one in run["sites"].items()}
            sizes = {site: int(one["images"]) for site, one in run["sites"].items()}
            over = eta_mean(sites, sizes, eta)
            missing, cells = missing + over.missing, cells + len(sites)
            if over.value is not None:
                values[seed] = over.value
        return OverSeeds(values, missing, cells)

    def at_site(self, name: str, figure: SiteFigure, site: str) -> list[float]:
        """A figure at one site for each seed that has it."""
        found = [figure(run["sites"][site]) for run in self.runs(name).values() if site in run["sites"]]
        return [value for value in found if value is not None]

    def worst(self, name: str, figure: SiteFigure, higher: bool) -> tuple[str, list[float]]:
        """The site where the mean over seeds is worst, and its value for each seed; an empty name without any."""
        means: dict[str, float | None] = {
            site: fmean(values) for site in self.benchmark.sites if (values := self.at_site(name, figure, site))
        }
        found = worst_site(means, higher)
        return ("", []) if found is None else (found.site, self.at_site(name, figure, found.site))


def fedee_results(out: Path) -> FedeeResults:
    """Read what is stored.

    Raises:
        StateError: A record is missing or damaged, or a run has no figures.
    """
    return FedeeResults(read_benchmark(out), read_fedee_figures(out))


def spoken(values: Sequence[float], places: int = 3) -> str:
    """Mean and population standard deviation, as the paper writes them; the value alone of one."""
    if not values:
        return NONE
    mean = number(fmean(values), places)
    return mean if len(values) == 1 else f"{mean} ± {number(pstdev(values), places)}"


def as_printed(one: Printed | None) -> str:
    """A figure of the paper."""
    return NONE if one is None else f"{one.mean:.3f} ± {one.std:g}"


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


__all__ = [
    "BY_SIZE",
    "HIGHER",
    "PLAIN",
    "FedeeResults",
    "OverSeeds",
    "SiteFigure",
    "as_printed",
    "fedee_results",
    "spoken",
]
