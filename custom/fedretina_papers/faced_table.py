"""Tables whose every figure of ours has the paper's beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fedretina.report.text import NONE, number
from fedretina_papers.markdown import NOT_RUN, listed, spread, table
from fedretina_papers.oct_runs import OctResults, Value
from fedretina_papers.published_oct import OctTable


class Column(NamedTuple):
    """A figure of ours, and where the paper has it.

    Attributes:
        title: In print, with its unit.
        value: The figure of a run; None where undefined.
        printed: Column of the published table; None where the paper has nothing like it.
        places: Decimals.
        scale: What the figure is multiplied by to have its unit.
        printed_places: Decimals that the paper prints.
    """

    title: str
    value: Value
    printed: str | None = None
    places: int = 1
    scale: float = 1
    printed_places: int = 1

    def ours(self, results: OctResults, name: str) -> str:
        """Mean over seeds, smallest and largest in brackets."""
        return over_seeds([self.scale * one for one in results.values(name, self.value)], self.places)


def faced(
    results: OctResults,
    published: OctTable,
    columns: Sequence[Column],
    more: Mapping[str, Callable[[str], str]] | None = None,
) -> list[str]:
    """Rows of a published table, each column of ours followed by the paper's.

    Args:
        results: What was run; rows that were not say so.
        published: The table.
        columns: Figures of ours.
        more: Further cells by title, worked out from the name of a row.
    """
    head = ["row"]
    for column in columns:
        head += [column.title, *(["paper"] if column.printed else [])]
    rows = []
    for name, said in published.rows.items():
        cells = [said]
        for column in columns:
            cells.append(column.ours(results, name) if name in results.runs else NOT_RUN)
            theirs = None if column.printed is None else published.figure(name, column.printed)
            cells += [number(theirs, column.printed_places)] if column.printed else []
        rows.append([*cells, *(cell(name) for cell in (more or {}).values())])
    return table([*head, *(more or {})], rows)


def our_encoder(results: OctResults) -> dict[str, Callable[[str], str]]:
    """A further cell that names our encoder, since the paper's may be another."""

    def told(name: str) -> str:
        return listed(sorted({one.run.encoder for one in results.runs.get(name, ())})) if name in results.runs else NONE

    return {"our encoder": told}


def over_seeds(values: Sequence[float], places: int) -> str:
    """Mean with its spread; without the brackets where all seeds print the same, as bytes do."""
    alike = len({number(one, places) for one in values}) == 1
    return spread(values[:1] if alike else values, places)


def notes(published: OctTable) -> list[str]:
    """What is known to be wrong with the printed figures."""
    if not published.errors:
        return []
    return ["Known of the printed figures:", "", *(f"- {' '.join(one.split())}" for one in published.errors), ""]
