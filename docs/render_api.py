"""Writes the reference of docs/api.md from the docstrings of the public names.

.venv/bin/python docs/render_api.py
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import fedretina
from fedretina import recipes
from fedretina_papers.markdown import between

PAGE = Path(__file__).resolve().parent / "api.md"
BEGIN, END = "<!-- begin reference -->", "<!-- end reference -->"
MEMBERS = {
    "Experiment": ("load", "resolve"),
    "Model": ("predict",),
    "Predictor": ("predict",),
    "SiteData": ("scheme", "split"),
}
"""What may be called of a class; what else it has, its docstring names."""


def _parameter(found: inspect.Parameter) -> str:
    kind = "" if found.annotation is found.empty else f": {found.annotation}"
    default = found.default
    if default is found.empty:
        return f"{found.name}{kind}"
    return f"{found.name}{kind} = {'...' if callable(default) else repr(default)}"


def _call(name: str, found: Any) -> str:
    signature = inspect.signature(found)
    given = ", ".join(_parameter(each) for each in signature.parameters.values() if each.name != "self")
    return f"{name}({given}) -> {signature.return_annotation}"


def _block(text: str) -> list[str]:
    return ["```text", text, "```", ""]


def reference() -> str:
    """The part of the page between the marks."""
    lines: list[str] = []
    for module, name in [
        *((fedretina, name) for name in fedretina.__all__ if name != "__version__"),
        *((recipes, name) for name in recipes.__all__),
    ]:
        found = getattr(module, name)
        lines += [f"### {name}", ""]
        lines += _block(
            inspect.getdoc(found) if inspect.isclass(found) else f"{_call(name, found)}\n\n{inspect.getdoc(found)}"
        )
        for member in MEMBERS.get(name, ()):
            place = inspect.getattr_static(found, member)
            called = (
                f"{name}.{member}" if isinstance(place, property) else _call(f"{name}.{member}", getattr(found, member))
            )
            said = inspect.getdoc(place.fget if isinstance(place, property) else getattr(found, member))
            lines += _block(f"{called}\n\n{said}")
    return "\n".join(lines).rstrip()


def render(page: str) -> str:
    """The page with the reference of today."""
    return between(page, BEGIN, END, reference())


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
