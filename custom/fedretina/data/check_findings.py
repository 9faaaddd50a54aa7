"""The findings of a check, collected: each a code with its cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedretina.data.check_codes import CODES, SEVERITIES, Severity

KEPT = 50  # cases of a finding that are kept; the total is always told


@dataclass(frozen=True)
class Finding:
    """One thing that the check found.

    Attributes:
        code: A key of `CODES`.
        severity: As in `CODES`, or graver.
        count: How many cases there are.
        where: The first of them (at most `KEPT`), each a file, a row or a patient in words.
        files: Files to look at for each case, for the page; at most `KEPT` cases.
    """

    code: str
    severity: Severity
    count: int
    where: tuple[str, ...]
    files: tuple[tuple[str, ...], ...] = ()

    @property
    def meaning(self) -> str:
        """What the code says, in plain text."""
        return CODES[self.code].meaning.replace("`", "'")

    @property
    def mend(self) -> str:
        """What to do about it, in plain text."""
        return CODES[self.code].mend.replace("`", "'")

    def record(self) -> dict[str, Any]:
        """Plain values for check.json."""
        return {
            "code": self.code,
            "severity": self.severity,
            "count": self.count,
            "where": list(self.where),
            "meaning": self.meaning,
            "mend": self.mend,
        }


class Findings:
    """Collects findings; those without a case vanish."""

    def __init__(self) -> None:
        self._found: dict[str, Finding] = {}

    def add(
        self, code: str, where: Sequence[str], files: Sequence[Sequence[str]] = (), severity: Severity | None = None
    ) -> None:
        """Note the cases of a code.

        Args:
            code: A key of `CODES`.
            where: All cases in words; none means that there is nothing to find.
            files: Files to look at for each case.
            severity: Where it is not the code's own.
        """
        if where:
            grave = severity or CODES[code].severity
            shown = tuple(tuple(group) for group in files[:KEPT])
            self._found[code] = Finding(code, grave, len(where), tuple(where[:KEPT]), shown)

    def __iter__(self) -> Iterator[Finding]:
        """Findings, the grave ones first, then in the order of `CODES`."""
        order = list(CODES)
        return iter(
            sorted(self._found.values(), key=lambda one: (SEVERITIES.index(one.severity), order.index(one.code)))
        )
