"""The table of methods: a method is a row, a choice on five axes; nothing else knows its name.

Job folders, the plain loop, the documentation's table and the tests over "every row" read this table. A row
holds settings only, in the shape of `Experiment`; whatever a job sets itself wins over its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedretina.errors import SettingsError
from fedretina.rows.analytic import ANALYTIC_ROWS
from fedretina.rows.base import Row
from fedretina.rows.early_exits import FEDEE_ROWS
from fedretina.rows.fundus import FUNDUS_ROWS
from fedretina.rows.oct import OCT_ROWS

__all__ = ["ROWS", "Row", "add_row", "row"]

_ROWS: dict[str, Row] = {**FUNDUS_ROWS, **OCT_ROWS, **FEDEE_ROWS, **ANALYTIC_ROWS}
ROWS: Mapping[str, Row] = MappingProxyType(_ROWS)


def add_row(name: str, added: Row) -> None:
    """Add a row that a package of somebody else's brings.

    The package's entry point of the group `fedretina.parts` names the module that calls this; the module is imported
    when an experiment asks for a row that is not there.

    Args:
        name: What an experiment calls the row.
        added: The row.

    Raises:
        SettingsError: Another row has the name.
    """
    # A module that is imported anew, as by a notebook, brings its own row again.
    if _ROWS.setdefault(name, added) != added:
        raise SettingsError(f"there is a row {name!r} already, {_ROWS[name].title}: give yours another name.")


def row(name: str) -> Row:
    """Return a row by its name.

    Raises:
        SettingsError: No such row; the message lists those there are.
    """
    if name not in ROWS:
        raise SettingsError(f"there is no row {name!r}; the rows are {', '.join(ROWS)}.")
    return ROWS[name]
