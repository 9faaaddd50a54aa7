"""Rows that a site can have alone, rows that share something, and when a shared one is said to help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from fedretina.report.text import NONE, size
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Line
from fedretina_papers.markdown import NOT_RUN, chance, signed, table
from fedretina_papers.statistics.multiple_tests import holm
from fedretina_papers.statistics.paired_seeds import seed_test

LEAD = ("row", "alone or shared")
TITLES: Mapping[str, str] = MappingProxyType(
    {
        "auc": "macro AUC",
        "referable_auc": "referable AUC",
        "kappa": "quadratic kappa",
        "accuracy": "accuracy",
        "balanced_accuracy": "balanced accuracy",
    }
)
_LEVEL = 0.05


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        name: In the records.
        title: In print.
        shared: Whether anything of other sites is in it: if not, it is one of the rows that a site can have alone.
    """

    name: str
    title: str
    shared: bool


def lacking(rows: Sequence[Row], records: Records, figure: str, draws: int) -> str:
    """Rows that lack draws, in words; empty where none does.

    Args:
        rows: The rows of a table.
        records: What was run.
        figure: By which they are compared.
        draws: How many were planned.
    """
    if not records.runs.size:
        return "every row, of which nothing has run"
    ran = {row.title: len(records.values(row.name, figure)) for row in rows}
    counts = set(ran.values())
    if len(counts) == 1 and (count := counts.pop()) < draws:
        return f"every row ({count} of {draws} draws)"
    return "; ".join(f"{title} ({count} of {draws} draws)" for title, count in ran.items() if count < draws)


def line(row: Row, against: str = "") -> Line:
    """A row's line in a table that begins with `LEAD`."""
    return Line((row.title, "shared" if row.shared else "alone"), row.name, against)


def moved(values: Sequence[float], _places: int) -> str:
    """Bytes, which are the same in every draw."""
    return size(round(values[0])) if values else NONE


def helped(rows: Sequence[Row], records: Records, figure: str) -> list[str]:
    """Which shared rows beat every row that a site can have alone, paired over draws.

    A row that must beat each of several others is tested by its largest p (Berger, Technometrics 1982); Holm adjusts
    for the number of shared rows.

    Args:
        rows: The rows of a table.
        records: What was run.
        figure: By which they are compared.
    """
    alone = [row.name for row in rows if not row.shared]
    shared = [row for row in rows if row.shared]
    tests = {row.name: [seed_test(records.gaps(row.name, other, figure)) for other in alone] for row in shared}
    # Of draws that all differ by the same there is no p, and nothing is said.
    largest = [max((1.0 if test.p is None else test.p for test in tests[row.name]), default=1.0) for row in shared]
    ran = [all(test.n >= 2 for test in tests[row.name]) for row in shared]
    adjusted = holm([p if there else None for p, there in zip(largest, ran, strict=True)])
    lines = []
    for row, p in zip(shared, adjusted, strict=True):
        least = min((test.mean for test in tests[row.name] if test.mean is not None), default=None)
        if p is None or least is None:
            lines.append([row.title, NOT_RUN, NOT_RUN, NOT_RUN])
            continue
        every = "**yes**" if least > 0 and p < _LEVEL else "no"
        lines.append([row.title, signed(least), chance(p), every])
    return table(["shared row", "least difference to a row alone", "largest p, Holm", "beats every row alone"], lines)
