"""A row of the table of methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One method.

    Attributes:
        title: The method's name in print.
        paper: Where it comes from.
        settings: What the row fixes on the axes, as nested settings of `Experiment`.
    """

    title: str
    paper: str
    settings: Mapping[str, Any]
