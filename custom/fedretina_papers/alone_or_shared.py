"""Rows that a site can have alone, rows that share something, and when a shared one is said to help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from fedretina.report.text import NONE, number, size
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Line
from fedretina_papers.markdown import NOT_RUN, chance, table
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


def line(row: Row, against: str = "") -> Line:
    """A row's line in a table that begins with `LEAD`."""
    return Line((row.title, "shared" if row.shared else "alone"), row.name, against)


def moved(values: Sequence[float], _places: int) -> str:
    """Bytes, which are the same in every draw."""
    return size(round(values[0])) if values else NONE


def helped(rows: Sequence[Row], records: Records, figure: str) -> list[str]:
    """Which shared rows beat every row that a site can have alone: paired over draws, Holm over all these comparisons.

    Args:
        rows: The rows of a table.
        records: What was run.
        figure: By which they are compared.
    """
    alone = [row.name for row in rows if not row.shared]
    pairs = [(row, other) for row in rows if row.shared for other in alone]
    tests = [seed_test(records.gaps(row.name, other, figure)) for row, other in pairs]
    adjusted = holm([test.p for test in tests])
    lines = []
    for row in (row for row in rows if row.shared):
        mine = [(test, p) for (one, _), test, p in zip(pairs, tests, adjusted, strict=True) if one is row]
        if any(test.n < 2 for test, _ in mine):
            lines.append([row.title, NOT_RUN, NOT_RUN, NOT_RUN])
            continue
        least = min((test.mean for test, _ in mine if test.mean is not None), default=None)
        # Of draws that all differ by the same there is no p, and nothing is said.
        worst = max((1.0 if p is None else p for _, p in mine), default=1.0)
        every = least is not None and least > 0 and worst < _LEVEL
        lines.append([row.title, number(least, 3), chance(worst), "**yes**" if every else "no"])
    return table(["shared row", "least difference to a row alone", "largest p (Holm)", "beats every row alone"], lines)
