"""A page: prose in a Jinja template, into which tables, pictures and words are put by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined

from fedretina.report import render as report
from fedretina.report import text
from fedretina_papers import markdown

FILTERS = {
    "chance": markdown.chance,
    "count": text.count,
    "listed": markdown.listed,
    "number": text.number,
    "percent": text.percent,
    "sentence_case": markdown.sentence_case,
    "several": markdown.several,
    "share": lambda value: f"{100 * value:g} %",
    "signed": markdown.signed,
}


def page(template: str, beside: Path | None = None, /, **values: Any) -> str:
    """Fill a template: Markdown without blank lines at its end or two together.

    Args:
        template: Its file's name in `pages/`.
        beside: A folder in which it is looked for first, such as that of one's own study.
        values: What it names; lists of lines are joined.
    """
    own = [] if beside is None else [FileSystemLoader(beside)]
    environment = Environment(
        loader=ChoiceLoader([*own, PackageLoader("fedretina_papers", "pages")]),
        autoescape=False,  # Markdown of our own records; sites and rows are names that were checked
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_lines,
    )
    environment.filters |= FILTERS
    whole = environment.get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", whole).strip() + "\n"


def write_page(template: str, file: Path, beside: Path | None = None, /, **values: Any) -> None:
    """Fill a template and write it.

    Args:
        template: Its file's name in `pages/`.
        file: The page.
        beside: See `page`.
        values: What the template names.

    Raises:
        StateError: The file cannot be written.
    """
    report.write_page(file, page(template, beside, **values))


def _lines(value: Any) -> Any:
    return "\n".join(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
