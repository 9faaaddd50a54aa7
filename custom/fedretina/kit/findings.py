"""What a check found: a line each, good or bad, with the way to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        what: What was looked at.
        good: Whether it is as it should be; None when it is only told.
        found: What was found.
        mend: How to mend it; empty when it is good.
    """

    what: str
    good: bool | None
    found: str
    mend: str = ""


def good(what: str, found: str) -> Finding:
    """A thing that is as it should be."""
    return Finding(what, True, found)


def bad(what: str, found: str, mend: str) -> Finding:
    """A thing that must be mended."""
    return Finding(what, False, found, mend)


def note(what: str, found: str) -> Finding:
    """A thing that the reader should know."""
    return Finding(what, None, found)


def judged(what: str, faults: Sequence[str], fine: str, mend: str) -> Finding:
    """Good when there are no faults."""
    return bad(what, "; ".join(faults), mend) if faults else good(what, fine)


def render(findings: Iterable[Finding]) -> str:
    """One line per finding, and one more for what must be mended."""
    lines = []
    for finding in findings:
        mark = {True: "ok  ", False: "FAIL", None: "note"}[finding.good]
        lines.append(f"{mark}  {finding.what}: {finding.found}")
        if finding.mend:
            lines.append(f"      mend: {finding.mend}")
    return "\n".join(lines)


def all_good(findings: Iterable[Finding]) -> bool:
    """Whether nothing must be mended."""
    return not any(finding.good is False for finding in findings)
