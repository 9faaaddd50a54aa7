"""Writes the table of attacks in docs/trust.md from the tests that show them.

A test carries `@pytest.mark.attack(who, tried, promised)`, or a parameter of it does. From the repository's root:

    .venv/bin/python docs/render_attacks.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedretina_papers.markdown import between

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "trust.md"
BEGIN, END = "<!-- begin attacks -->", "<!-- end attacks -->"
WHO = ("a lead", "another admin", "a hostile server", "a hostile site", "an outsider", "an accident")


def collect(root: Path = ROOT) -> dict[tuple[str, str, str], list[str]]:
    """List the attacks that tests show: who, what was tried, what is promised, and the tests.

    The files are read, not imported: that takes a fraction of a second, where their imports take ten.

    Raises:
        ValueError: A marker stands where no test has it, or is not one of the form above.
    """
    shown: dict[tuple[str, str, str], list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        if "mark.attack(" not in (text := path.read_text("utf-8")):
            continue
        tree, seen = ast.parse(text), set()
        for test, marker in _markers(tree):
            seen.add(marker)
            places = shown.setdefault(_words(path, marker), [])
            if (place := f"{path.relative_to(root).as_posix()}::{test}") not in places:
                places.append(place)
        if left := set(_attacks(tree)) - seen:
            raise ValueError(f"{path.name}, line {min(marker.lineno for marker in left)}: no test has this marker.")
    return shown


def _markers(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Markers of each test: in its decorators, and in the lists of parameters that its decorators name."""
    lists = {
        name.id: list(_attacks(node.value))
        for node in tree.body
        if isinstance(node, ast.Assign)
        for name in node.targets
        if isinstance(name, ast.Name)
    }
    for test in tree.body:
        if isinstance(test, ast.FunctionDef):
            for decorator in test.decorator_list:
                for node in ast.walk(decorator):
                    named = lists.get(node.id, []) if isinstance(node, ast.Name) else []
                    yield from ((test.name, marker) for marker in named)
                yield from ((test.name, marker) for marker in _attacks(decorator))


def _attacks(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "attack":
            yield node


def _words(path: Path, marker: ast.Call) -> tuple[str, str, str]:
    try:
        who, tried, promised = (ast.literal_eval(word) for word in marker.args)
    except ValueError:
        raise ValueError(f"{path.name}, line {marker.lineno}: an attack is marked by three plain strings.") from None
    if who not in WHO or not tried.strip() or not promised.strip():
        raise ValueError(f"an attack needs one of {', '.join(WHO)}, what was tried and what is promised: {tried!r}.")
    return who, tried, promised


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
    return between(page, BEGIN, END, f"{table(rows)}\n")


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
