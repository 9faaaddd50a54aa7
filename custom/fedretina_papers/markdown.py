"""Tables and numbers as the benchmark's page writes them, and what stands between two marks of a page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedretina.report.text import NONE, number

NOT_RUN = "not run"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] | None = None) -> list[str]:
    """A table in Markdown.

    Args:
        head: Titles of its columns.
        rows: Its cells.
        right: Columns that hold figures and are set right, from 0; by default all but the first.
    """
    figures = range(1, len(head)) if right is None else right
    rule = "".join("---:|" if at in figures else "---|" for at in range(len(head)))
    return [_row(head).replace("|  |", "| |"), f"|{rule}", *(_row(row) for row in rows), ""]


def spread(values: Sequence[float], places: int = 3) -> str:
    """Mean over seeds, smallest and largest in brackets; a dash without values."""
    if not values:
        return NONE
    mean = number(fmean(values), places)
    return mean if len(values) == 1 else f"{mean} ({number(min(values), places)} to {number(max(values), places)})"


def signed(value: float | None, places: int = 3) -> str:
    """A difference with its sign."""
    text = number(value, places)
    return f"+{text}" if value is not None and float(f"{value:.{places}f}") > 0 else text


def chance(p: float | None) -> str:
    """A p value: three decimals, never a bare zero."""
    if p is None:
        return NONE
    return "< 0.001" if p < 0.0005 else number(p, 3)


def interval(test: Mapping[str, Any] | None, places: int = 3) -> str:
    """An interval of a difference: "-0.012 to +0.034"."""
    if test is None or test["low"] is None:
        return NONE
    return f"{signed(test['low'], places)} to {signed(test['high'], places)}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: "a, b and c"; with semicolons where a name holds a comma of its own."""
    if len(names) < 2:
        return names[0] if names else "none"
    if any("," in name for name in names):
        return "; ".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def sentence_case(text: str) -> str:
    """The first letter large, the others as they are."""
    return text[:1].upper() + text[1:]


def several(count: int, thing: str) -> str:
    """A count with its noun: "1 seed", "3 seeds"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def between(page: str, begin: str, end: str, text: str) -> str:
    """The page with another text between two marks, which stay.

    Raises:
        ValueError: The page has not each mark once, the end behind the begin.
    """
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found or page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs `{begin}` and `{end}` once each: put them where the text belongs.")
    return f"{before}{begin}\n{text}\n{end}{after}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
