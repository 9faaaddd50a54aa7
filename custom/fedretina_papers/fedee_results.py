"""FedEE's stored figures: what they are called, which rows its tables show, and their means over sites."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from fedretina_papers.engine.records import BY_SIZE, PLAIN, Records
from fedretina_papers.fedee_figures import PAPER_RATE, RATES, read_fedee_figures
from fedretina_papers.published import METHODS, published_fedee
from fedretina_papers.stored import Benchmark, read_benchmark

GLOBAL = "fedee_global"
"""The row whose exits travel like the rest."""
FURTHER: Mapping[str, Mapping[str, str]] = {
    strategy: {"Temperature": f"{plain}_temperature", "EU": f"eu{ending}", "TWEU": f"tweu{ending}"}
    for strategy, plain, ending in (
        ("FedAvg", "fedavg", "_fedavg"),
        ("FedProx", "fedprox", "_fedprox"),
        ("FedAvg+FT", "fedavg_ft", "_fedavg_ft"),
        ("FedProx+FT", "fedprox_ft", "_fedprox_ft"),
        ("FedBN", "fedbn", ""),
        ("FedBN(+FT)", "fedbn_ft", "_ft"),
        ("FedAP", "fedap", "_fedap"),
        ("FedAP(+FT)", "fedap_ft", "_fedap_ft"),
    )
}
"""Estimators that the paper does not compare with, under its strategies: name of our row by strategy and estimator."""
LESS_IS_BETTER = {"aurc": "AURC", "ece": "ECE", "brier": "Brier score", "nll": "NLL"}
"""Figures of which less is better, by key."""
ETAS = (PLAIN, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, math.e)
"""Values of eta from the plain mean to the one by size."""


class FedeeResults:
    """Stored runs with FedEE's figures.

    Args:
        benchmark: Plan and records.
        figures: As stored in `fedee.json`.

    Attributes:
        benchmark: The same.
        figures: The same.
        records: The figures, of the runs that are there.
        printed: The paper's data set that ours stand beside; None for none.
        unit: What stands for a patient.
        metric: What the tables call accuracy.
    """

    def __init__(self, benchmark: Benchmark, figures: Mapping[str, Any]) -> None:
        self.benchmark, self.figures = benchmark, figures
        self.printed: str | None = benchmark.plan.get("printed")
        self.unit = str(benchmark.plan.get("unit") or "patient")
        self.metric = str(benchmark.plan.get("metric") or "accuracy")
        stored = figures.get("runs", {})
        runs = {
            name: {seed: stored[name][str(seed)] for seed in benchmark.runs[name]}
            for name in benchmark.runs
            if name in stored
        }
        self.records = Records(runs, tuple(benchmark.plan.get("sites", ())), "images")

    @property
    def titles(self) -> dict[str, str]:
        """What the figures of the paper's tables are called, by key, under the plan's metric."""
        metric = self.metric.replace("_", " ")
        kept = "" if metric == "accuracy" else f" ({metric})"
        return {
            "accuracy": metric,
            "misdetection": "misdiagnosis detection",
            "selective": f"selective prediction{kept}",
        }

    def figure(self, key: str) -> str:
        """Where a figure stands: "accuracy" and "selective" follow the plan's metric."""
        return {"accuracy": self.metric, "selective": self.selective(RATES.index(PAPER_RATE))}.get(key, key)

    def selective(self, at: int) -> str:
        """Where the plan's metric stands when the share `RATES[at]` was referred."""
        return f"selective.{self.metric}.{at}"

    def mean(self, name: str, key: str, eta: float = BY_SIZE) -> float | None:
        """A figure over sites and seeds; None without any.

        Args:
            name: The row.
            key: The figure.
            eta: e weighs sites by their test images, 1 weighs them alike.
        """
        found = self.records.values(name, self.figure(key), eta)
        return fmean(found) if found else None

    def shown(self, under: str | None = None) -> list[str]:
        """Rows that were run: the paper's in its order, `FURTHER`, then the others; variants of Tables 7 to 9 not.

        Args:
            under: One strategy alone, without further rows.
        """
        paper = published_fedee().rows
        chosen = paper if under is None else {under: paper[under]}
        names = [name for methods in chosen.values() for name in (methods[method] for method in METHODS)]
        if under is None:
            names += [name for further in FURTHER.values() for name in further.values()]
            names += [name for name in self.benchmark.runs if name not in names and name not in self.benchmark.apart]
        return [name for name in names if name in self.benchmark.runs]

    def label(self, name: str) -> str:
        """A row by strategy and method; its title where the paper has not the like."""
        for rows in (published_fedee().rows, FURTHER):
            for strategy, methods in rows.items():
                for method, ours in methods.items():
                    if ours == name:
                        return f"{method}, {strategy}"
        return self.benchmark.title(name)


def fedee_results(out: Path) -> FedeeResults:
    """Read what is stored.

    Raises:
        StateError: A record is missing or damaged, or a run has no figures.
    """
    return FedeeResults(read_benchmark(out), read_fedee_figures(out))
