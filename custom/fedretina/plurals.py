"""Counts in sentences: "1 site", "3 sites"."""

from __future__ import annotations

from collections.abc import Callable


def counted(number: float, one: str, several: str = "", written: Callable[[float], str] = str) -> str:
    """A number and what it counts.

    Args:
        number: How many, 0 or more.
        one: The words for one, such as "site" or "update was".
        several: Those for any other number; by default those for one with an s.
        written: How the number is written.
    """
    return f"{written(number)} {one if number == 1 else several or one + 's'}"
