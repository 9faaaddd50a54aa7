"""Draws the house: which folder of the package stands on which, from the imports. Into docs/architecture.md.

    .venv/bin/python docs/render_house.py        (or `make house`)

A box stands on the boxes that its lines lead down to, and on all that those stand on: a line that says nothing new is
left out. Imports inside a function count, those for types alone do not. Folders that import each other in a circle
share a box.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from fedretina_papers.markdown import between

DOCS = Path(__file__).resolve().parent
PACKAGE = DOCS.parent / "custom" / "fedretina"
PAGE, PICTURE = DOCS / "architecture.md", DOCS / "pictures" / "house.svg"
BEGIN, END = "<!-- begin house -->", "<!-- end house -->"
Graph = dict[str, set[str]]

_WIDE, _HIGH, _ROW = 1080, 26, 62  # pixels: of the picture, of a box, from floor to floor


def imports() -> Graph:
    """What each folder or module at the top of the package imports, itself left out."""
    graph: Graph = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        if len(inside.parts) == 1 and inside.stem.startswith("__"):
            continue  # `import fedretina` and `python -m fedretina` only name what others do
        unit = inside.parts[0].removesuffix(".py")
        found = set(_imported(ast.parse(path.read_text(encoding="utf-8"))))
        graph[unit] = graph.get(unit, set()) | {name for name in found if (PACKAGE / name).is_dir() or _module(name)}
    return {unit: graph[unit] - {unit} for unit in sorted(graph)}


def _module(name: str) -> bool:
    return (PACKAGE / f"{name}.py").exists()


def _imported(tree: ast.AST) -> Iterator[str]:
    """Second word of each module of the package that is imported when the code runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if "." in node.module else [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = []
        yield from (name.split(".")[1] for name in names if name.startswith("fedretina."))
        yield from _imported(node)


def reach(graph: Mapping[str, set[str]]) -> Graph:
    """All that each stands on, at any depth."""
    found: Graph = {}
    for unit in graph:
        seen: set[str] = set()
        waiting = [*graph[unit]]
        while waiting:
            below = waiting.pop()
            if below not in seen:
                seen.add(below)
                waiting += graph[below]
        found[unit] = seen
    return found


def joined(graph: Graph) -> Graph:
    """The graph with folders in a circle as one, under their names by comma."""
    below = reach(graph)
    name = {
        unit: ", ".join(sorted({unit} | {other for other in below[unit] if unit in below[other]})) for unit in graph
    }
    found: Graph = {name[unit]: set() for unit in graph}
    for unit, others in graph.items():
        found[name[unit]] |= {name[other] for other in others} - {name[unit]}
    return found


def floors(graph: Graph) -> list[list[str]]:
    """The boxes by floor, the lowest first: each one floor above the highest of those that it stands on."""
    height: dict[str, int] = {}

    def floor(unit: str) -> int:
        if unit not in height:
            height[unit] = 1 + max((floor(below) for below in graph[unit]), default=-1)
        return height[unit]

    found: list[list[str]] = [[] for _ in range(1 + max(map(floor, graph)))]
    for unit in sorted(graph):
        found[height[unit]].append(unit)
    return found


def needed(graph: Graph) -> Graph:
    """The lines that say something: those to a box that no other of its boxes stands on."""
    below = reach(graph)
    return {
        unit: {one for one in others if not any(one in below[other] for other in others)}
        for unit, others in graph.items()
    }


def picture(graph: Graph) -> str:
    """The house as SVG."""
    boxes = joined(graph)
    rows = floors(boxes)
    lines = needed(boxes)
    above: Graph = {unit: {over for over in lines if unit in lines[over]} for unit in boxes}
    place: dict[str, float] = {}
    for order in range(9):  # up and down, so that lines are short
        for row in rows if order % 2 == 0 else rows[::-1]:
            near = lines if order % 2 == 0 else above
            # Sorted: the mean of a set in another order may differ in its last bit, and change places of two boxes.
            beside = {unit: [place[one] for one in sorted(near[unit]) if one in place] for unit in row}
            row.sort(key=lambda unit: _middle(beside[unit], place.get(unit, 0.5)))
            place |= {unit: (at + 0.5) / len(row) for at, unit in enumerate(row)}
    high = len(rows) * _ROW + _HIGH
    middle: dict[str, tuple[float, float]] = {}
    drawn: list[str] = []
    for number, row in enumerate(rows):
        y = high - _HIGH - number * _ROW
        wide = [8.0 * len(unit) + 22 for unit in row]
        space = (_WIDE - sum(wide)) / (len(row) + 1)
        x = space
        for unit, width in zip(row, wide, strict=True):
            middle[unit] = (x + width / 2, y)
            folder = all((PACKAGE / one).is_dir() for one in unit.split(", "))
            circle = ", " in unit
            fill, edge = (
                ("#fde2dd", "#b3402a") if circle else ("#dcebf7", "#3b6ea5") if folder else ("#f1f1ee", "#8a8a84")
            )
            drawn.append(
                f'<rect x="{x:.0f}" y="{y - _HIGH / 2:.0f}" width="{width:.0f}" height="{_HIGH}" rx="4" fill="{fill}" '
                f'stroke="{edge}"/><text x="{x + width / 2:.0f}" y="{y + 5:.0f}">{escape(unit)}</text>'
            )
            x += width + space
    strokes = []
    for unit in sorted(lines):
        for below in sorted(lines[unit]):
            (x, top), (to, foot) = middle[unit], middle[below]
            top, foot, bend = top + _HIGH / 2, foot - _HIGH / 2, _ROW * 0.5
            start, end = f"{x:.0f} {top + bend:.0f}", f"{to:.0f} {foot - bend:.0f}"
            strokes.append(f'<path d="M{x:.0f} {top:.0f} C{start} {end} {to:.0f} {foot:.0f}"/>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {high}" width="{_WIDE}" height="{high}" '
        'font-family="sans-serif" font-size="14">'
    )
    return "\n".join(
        [
            head,
            "<title>Which folder of fedretina stands on which</title>",
            f'<rect width="{_WIDE}" height="{high}" fill="#ffffff"/>',
            '<g fill="none" stroke="#9aa3ab" stroke-width="1.2">',
            *strokes,
            "</g>",
            '<g text-anchor="middle">',
            *drawn,
            "</g>",
            "</svg>",
            "",
        ]
    )


def _middle(places: Sequence[float], otherwise: float) -> float:
    return sum(places) / len(places) if places else otherwise


def table(graph: Graph) -> str:
    """What each folder is, in the words of its own docstring, from the roof down."""
    lines = ["| | what it is | imports |", "|---|---|---|"]
    for row in floors(joined(graph))[::-1]:
        for unit in [name for box in row for name in box.split(", ")]:
            folder = (PACKAGE / unit).is_dir()
            path = PACKAGE / unit / "__init__.py" if folder else PACKAGE / f"{unit}.py"
            said = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
            link = f"[{unit}{'/' if folder else '.py'}](../custom/fedretina/{unit}{'/' if folder else '.py'})"
            lines.append(f"| {link} | {' '.join(said.split())} | {', '.join(sorted(graph[unit]))} |")
    return "\n".join(lines)


def render(page: str) -> str:
    """The page with the house of today."""
    graph = imports()
    body = f"![which folder stands on which](pictures/{PICTURE.name})\n\n{table(graph)}"
    return between(page, BEGIN, END, body)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(picture(imports()), encoding="utf-8")
