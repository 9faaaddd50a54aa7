"""How the report writes numbers: few digits, the same everywhere, and a dash for what is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

NONE = "–"
PERCENT = "\u00a0%"  # the sign stays with its number at the end of a line


def rounded(value: SupportsFloat | None) -> float | None:
    """A figure for a stored record: six decimals, more than anyone reads, and few enough that files stay small."""
    return None if value is None else round(float(value), 6)


def percent(share: float | None) -> str:
    """A share as per cent: whole, with one place near the ends, where it matters most."""
    if share is None:
        return NONE
    value = 100 * share
    if 0 < value < 0.05:
        return f"below 0.1{PERCENT}"
    if 99.95 <= value < 100:
        return f"above 99.9{PERCENT}"
    near_an_end = 0 < value < 1.95 or 98.05 <= value < 100
    return f"{value:.1f}{PERCENT}" if near_an_end else f"{value:.0f}{PERCENT}"


def number(value: float | None, places: int = 2) -> str:
    """A figure with two decimals; never a minus before zero."""
    if value is None:
        return NONE
    text = f"{value:.{places}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\u2212")


def points(share: float | None) -> str:
    """A difference of shares, in percentage points."""
    return percent(share).replace(PERCENT, " percentage points")


def count(value: float | None) -> str:
    """A whole number with narrow gaps between thousands."""
    return NONE if value is None else f"{value:,.0f}".replace(",", "\u202f")


def size(number_of_bytes: float | None) -> str:
    """Bytes with a unit that leaves few digits; 1 MB is a million bytes."""
    if number_of_bytes is None:
        return NONE
    value = float(number_of_bytes)
    for unit in ("bytes", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "bytes" or value >= 99.95 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def shown(value: float | None, style: str) -> str:
    """A figure in its style, "percent" or "number"."""
    return percent(value) if style == "percent" else number(value)


def between(figure: Mapping[str, Any], style: str) -> str | None:
    """The interval of a figure as "0.77 to 0.92"; None where there is none."""
    low, high = figure.get("low"), figure.get("high")
    if low is None or high is None:
        return None
    return f"{shown(low, style).removesuffix(PERCENT)} to {shown(high, style)}"


def with_interval(figure: Mapping[str, Any], style: str) -> str:
    """A figure with its interval: "0.85 (95 % interval 0.77 to 0.92)"."""
    span = between(figure, style)
    value = shown(figure.get("value"), style)
    return value if span is None else f"{value} (95{PERCENT} interval {span})"
