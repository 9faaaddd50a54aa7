"""The table of methods: a method is a row, a choice on five axes; nothing else knows its name.

Job folders, the plain loop, the documentation's table and the tests over "every row" read this table. A row
holds settings only, in the shape of `Experiment`; whatever a job sets itself wins over its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedretina.errors import SettingsError
from fedretina.rows.base import Row
from fedretina.rows.early_exits import FEDEE_ROWS
from fedretina.rows.fundus import FUNDUS_ROWS
from fedretina.rows.oct import OCT_ROWS

__all__ = ["ROWS", "Row", "row"]

ROWS: Mapping[str, Row] = MappingProxyType({**FUNDUS_ROWS, **OCT_ROWS, **FEDEE_ROWS})


def row(name: str) -> Row:
    """Return a row by its name.

    Raises:
        SettingsError: No such row; the message lists those there are.
    """
    if name not in ROWS:
        raise SettingsError(f"there is no row {name!r}; the rows are {', '.join(ROWS)}.")
    return ROWS[name]
