"""What FedEE's tables and figures call rows and measures, and which rows they show in which order."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedretina.report.text import percent
from fedretina_papers.fedee_figures import PAPER_RATE, RATES
from fedretina_papers.fedee_results import FedeeResults
from fedretina_papers.published_fedee import METHODS, published_fedee
from fedretina_papers.statistics.eta_mean import PLAIN

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


def titles(results: FedeeResults) -> dict[str, str]:
    """What the figures of the paper's tables are called, by key, under the plan's metric."""
    metric = str(results.benchmark.plan.get("metric") or "accuracy").replace("_", " ")
    kept = "" if metric == "accuracy" else f" ({metric})"
    return {"accuracy": metric, "misdetection": "misdiagnosis detection", "selective": f"selective prediction{kept}"}


def eta_steps() -> tuple[float, ...]:
    """Values of eta from the plain mean to the one by size."""
    return (PLAIN, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, math.e)


def shown_rows(results: FedeeResults, under: str | None = None) -> list[str]:
    """Rows that were run: the paper's in its order, `FURTHER`, then the others; variants of Tables 7 to 9 not.

    Args:
        results: What was run.
        under: One strategy alone, without further rows.
    """
    paper = published_fedee().rows
    chosen = paper if under is None else {under: paper[under]}
    names = [name for methods in chosen.values() for name in (methods[method] for method in METHODS)]
    if under is None:
        names += [name for further in FURTHER.values() for name in further.values()]
        names += [name for name in results.benchmark.runs if name not in names and not is_tuning(name)]
    return [name for name in names if name in results.benchmark.runs]


def label(results: FedeeResults, name: str) -> str:
    """A row by strategy and method; its title where the paper has not the like."""
    for rows in (published_fedee().rows, FURTHER):
        for strategy, methods in rows.items():
            for method, ours in methods.items():
                if ours == name:
                    return f"{method}, {strategy}"
    return results.benchmark.title(name)


def is_tuning(name: str) -> bool:
    """Whether a row belongs to Tables 7 to 9."""
    return name.startswith("fedee_b") and "_lr" in name


def rates_words() -> str:
    """Shares that are referred in Figure 4."""
    return f"{percent(RATES[0])} to {percent(RATES[-1])}; Tables 3, 5, 10 and 13 take {percent(PAPER_RATE)}"
