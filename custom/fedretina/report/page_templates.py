"""The templates of all pages, each compiled once in a process: that takes a fifth of a page's time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


@cache
def templates(**filters: Callable[..., Any]) -> Environment:
    """The templates of `TEMPLATES`, in which all is escaped and a name that nobody gives is an error.

    Args:
        filters: Those of a page, by the names that its template has for them.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment
