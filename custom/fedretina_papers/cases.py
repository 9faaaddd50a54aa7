"""Single cases of two rows side by side (FedUAA, Figures 2a and 2b), for the eyes at this machine only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedretina.data.site_data import SiteData
from fedretina.report.render import render_cases, write_page
from fedretina.report.site_report import data_uri
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.stored import Answers, read_answers, read_benchmark

EACH = 2
RULES = {
    "right": "Right and surest: the images that {reference} answers rightly with the least u.",
    "wrong": "Wrong in both rows, where {beside} was surest of itself: does {reference} warn?",
}


def write_cases(plan: BenchmarkPlan, sites: dict[str, SiteData], out: Path, page: Path) -> bool:
    """Write a page with cases of the plan's reference and of the row beside it.

    Cases are chosen by a rule that the page states, not by hand. The page shows images of patients: it belongs to no
    repository and no report that leaves the machine.

    Args:
        plan: Names both rows; the first seed is shown.
        sites: The sites as the first seed sees them.
        out: The benchmark's folder, with the answers.
        page: The file to write.

    Returns:
        Whether there was anything to write: both rows ran, at one site at least.

    Raises:
        StateError: Answers are damaged, or the page cannot be written.
    """
    seed, benchmark = plan.seeds[0], read_benchmark(out)
    shown = []
    for name, data in sorted(sites.items()):
        rows = [row for row in (plan.beside, plan.reference) if seed in benchmark.runs.get(row, {})]
        if len(rows) < 2 or any(name not in benchmark.runs[row][seed]["sites"] for row in rows):
            continue
        beside, reference = (read_answers(out, row, seed, name) for row in rows)
        shown += _of_site(data, beside, reference)
    if not shown:
        return False
    titles = {"reference": benchmark.title(plan.reference), "beside": benchmark.title(plan.beside)}
    rules = {kind: words.format(**titles) for kind, words in RULES.items()}
    synthetic = any(data.synthetic for data in sites.values())
    write_page(page, render_cases({"titles": titles, "rules": rules, "cases": shown, "synthetic": synthetic}))
    return True


def chosen(beside: Answers, reference: Answers, kind: str, each: int = EACH) -> NDArray[np.intp]:
    """Places of the cases of a kind, the clearest first; of equals the earlier image."""
    if kind == "right":
        rank, stands = reference.uncertainty, ~reference.wrong
    else:
        rank, stands = -np.max(beside.probabilities, axis=1), reference.wrong & beside.wrong
    order = np.argsort(rank, kind="stable")
    return order[stands[order]][:each]


def _of_site(data: SiteData, beside: Answers, reference: Answers) -> list[dict[str, Any]]:
    split = data.split("test")
    found = []
    for kind in RULES:
        for at in chosen(beside, reference, kind).tolist():
            found.append(
                {
                    "kind": kind,
                    "site": data.name,
                    "image": data_uri(split.images[at]),
                    "truth": data.scheme.grades[int(split.labels[at])],
                    "rows": {
                        "beside": _answer(beside, at, data),
                        "reference": _answer(reference, at, data),
                    },
                }
            )
    return found


def _answer(answers: Answers, at: int, data: SiteData) -> dict[str, Any]:
    odds = answers.probabilities[at]
    return {
        "answer": data.scheme.grades[int(np.argmax(odds))],
        "probabilities": [
            (grade, round(float(share), 4)) for grade, share in zip(data.scheme.grades, odds, strict=True)
        ],
        "uncertainty": round(float(answers.uncertainty[at]), 4),
    }
