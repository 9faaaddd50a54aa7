"""What FedEE's rows are worth beside an answer without looking, and what their members would do alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import Any

from fedretina.report.text import NONE, number
from fedretina_papers.fedee_names import label, shown_rows
from fedretina_papers.fedee_results import FedeeResults
from fedretina_papers.markdown import sentence_case, table
from fedretina_papers.statistics.site_mean import BY_SIZE, site_mean

_BESIDE = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "brier": "Brier score", "nll": "NLL"}


def constant_table(results: FedeeResults) -> list[str]:
    """Accuracy, balanced accuracy, Brier score and NLL beside those of an answer that is always the same."""
    names = shown_rows(results)
    if not names:
        return []
    first = [results.over_seeds(names[0], partial(_constant, key)).cell() for key in _BESIDE]
    rows = [["the same answer to all", *first, NONE]]
    for name in names:
        cells = [results.over_seeds(name, itemgetter(key)).cell() for key in _BESIDE]
        there = [site for run in results.runs(name).values() for site in run["sites"].values()]
        no_better = sum(site["accuracy"] <= site["constant"]["accuracy"] for site in there)
        rows.append([label(results, name), *cells, f"{no_better} of {len(there)}"])
    return table(["row", *_BESIDE.values(), "accuracy not above it, sites times seeds"], rows)


def _constant(key: str, site: Mapping[str, Any]) -> float:
    return float(site["constant"][key])


def member_table(results: FedeeResults) -> list[str]:
    """Each exit alone, the final head last: its accuracy, and whether its own u notices out-of-distribution images.

    Nothing where no row answers with several members.
    """
    lines: list[str] = []
    for title, figure in _figures(results).items():
        rows: list[list[str]] = []
        for name in shown_rows(results):
            runs = list(results.runs(name).values())
            count = max((len(site["members"]) for run in runs for site in run["sites"].values()), default=0)
            cells = [_over_runs(runs, member, figure) for member in range(count)]
            if any(cell != NONE for cell in cells):
                rows.append([label(results, name), *cells])
        if rows:
            widest = max(len(row) for row in rows) - 1
            head = ["row", *(str(member + 1) for member in range(widest))]
            padded = [[*row, *[NONE] * (widest + 1 - len(row))] for row in rows]
            lines += [f"**{sentence_case(title)}**", "", *table(head, padded)]
    return lines


def _figures(results: FedeeResults) -> dict[str, Any]:
    names = results.benchmark.plan.get("strangers") or ()
    accuracy: dict[str, Any] = {"accuracy": lambda one: one["accuracy"]}
    return accuracy | {f"AUROC of {name}": lambda one, name=name: one["strangers"].get(name) for name in names}


def _over_runs(runs: list[Mapping[str, Any]], member: int, figure: Any) -> str:
    """The mean over seeds of the mean by the sites' sizes."""
    means = []
    for run in runs:
        there = {name: site for name, site in run["sites"].items() if member < len(site["members"])}
        values = {name: figure(site["members"][member]) for name, site in there.items()}
        over = (
            site_mean(values, {name: int(site["images"]) for name, site in there.items()}, BY_SIZE) if there else None
        )
        if over is not None and over.value is not None:
            means.append(over.value)
    return number(fmean(means), 3) if means else NONE
