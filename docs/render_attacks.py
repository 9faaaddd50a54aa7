"""Writes the table of attacks in docs/trust.md from the tests that show them.

A test carries `@pytest.mark.attack(who, tried, promised)`, or a parameter of it does. From the repository's root:

    .venv/bin/python docs/render_attacks.py
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "trust.md"
BEGIN, END = "<!-- begin attacks -->", "<!-- end attacks -->"
WHO = ("a lead", "another admin", "a hostile server", "a hostile site", "an outsider", "an accident")


class Attacks:
    """Gathers the attacks of the tests that pytest collects: who, what was tried, what is promised, and the tests."""

    def __init__(self) -> None:
        self.shown: dict[tuple[str, str, str], list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the markers of all tests."""
        for item in session.items:
            place = f"{item.path.relative_to(ROOT).as_posix()}::{getattr(item, 'originalname', item.name)}"
            for marker in item.iter_markers("attack"):
                who, tried, promised = marker.args
                places = self.shown.setdefault((who, tried, promised), [])
                if place not in places:
                    places.append(place)


def collect(root: Path = ROOT) -> dict[tuple[str, str, str], list[str]]:
    """List the attacks that tests show.

    Raises:
        ValueError: The tests cannot be collected, or a marker is not one of the form above.
    """
    marked = [path for path in sorted((root / "tests").rglob("test_*.py")) if "mark.attack(" in path.read_text("utf-8")]
    found, said = Attacks(), io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *map(str, marked)], plugins=[found])
    if code:
        raise ValueError(f"the tests cannot be collected:\n{said.getvalue()}")
    for who, tried, promised in found.shown:
        if who not in WHO or not tried.strip() or not promised.strip():
            raise ValueError(
                f"an attack needs one of {', '.join(WHO)}, what was tried and what is promised: {tried!r}."
            )
    return found.shown


def table(attacks: dict[tuple[str, str, str], list[str]]) -> str:
    """The table in Markdown: by who tries it, then by what."""
    lines = ["| who | tried | promised | shown by |", "|---|---|---|---|"]
    for words in sorted(attacks, key=lambda words: (WHO.index(words[0]), words[1])):
        lines.append(f"| {' | '.join(map(_cell, (*words, ', '.join(map(_link, attacks[words])))))} |")
    tests = {place for places in attacks.values() for place in places}
    count = f"{len(attacks)} attacks and accidents, shown by {len(tests)} tests."
    return "\n".join([count, "", *lines])


def render(page: str, rows: dict[tuple[str, str, str], list[str]]) -> str:
    """The page with its table made anew."""
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n{table(rows)}\n\n{END}", page)


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|")


def _link(place: str) -> str:
    file, _, name = place.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{file})"


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), collect()), encoding="utf-8")


if __name__ == "__main__":
    main()
