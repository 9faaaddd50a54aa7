"""A study's stored records as two pandas frames: one line per run and site, and one line per run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import e, log
from typing import Any

import pandas as pd

RUN = ("row", "seed")
"""What tells runs apart."""
SITE = (*RUN, "site")
"""What tells a run's sites apart."""
BY_SIZE, PLAIN = e, 1.0
"""FedEE's eta (Eq. 12): a site weighs eta^ln(n) = n^ln(eta), n its test images."""

Figure = str | Callable[["Records"], pd.Series]
"""A figure: where it stands in the record of a site or run, its keys joined by dots; or how it is worked out."""


class Records:
    """Every number that a study stored, by its place in the record.

    A number at `record["sites"]["north"]["test"]["auc"]` is the column `test.auc` of `sites`; one at
    `record["moved"]["train"]["up"]` is the column `moved.train.up` of `runs`; a place in a list is a number, from 0.
    What is no number is left out, and what is missing or null is NaN.

    Args:
        runs: Record of each run by row and seed (or draw), its sites under `sites`.
        order: Names of the sites in the order of the tables; those of the records by default.
        size: Figure of a site by which it is weighed.

    Attributes:
        sites: Indexed by row, seed and site.
        runs: Indexed by row and seed.
        order: Names of the sites.
    """

    def __init__(
        self,
        runs: Mapping[str, Mapping[int, Mapping[str, Any]]],
        order: Sequence[str] = (),
        size: str = "images.test",
    ) -> None:
        whole: dict[tuple[str, int], dict[str, float]] = {}
        there: dict[tuple[str, int, str], dict[str, float]] = {}
        for row, seeds in runs.items():
            for seed, record in seeds.items():
                whole[row, seed] = dict(_numbers({key: one for key, one in record.items() if key != "sites"}))
                for site, one in (record.get("sites") or {}).items():
                    there[row, seed, site] = dict(_numbers(one))
        self.runs = _frame(whole, RUN)
        self.sites = _frame(there, SITE)
        self.order = tuple(order) or tuple(dict.fromkeys(site for _, _, site in there))
        self._size = size
        self._rows = frozenset(row for row, _ in whole)
        self._found: dict[Figure, pd.Series] = {}
        self._joined: dict[tuple[Figure, str | float], dict[str, dict[int, float]]] = {}

    def __contains__(self, row: str) -> bool:
        return row in self._rows

    def figure(self, figure: Figure) -> pd.Series:
        """A figure of every run: by site where sites have it, else by run; NaN where it is missing."""
        if figure not in self._found:
            self._found[figure] = self._read(figure) if isinstance(figure, str) else figure(self)
        return self._found[figure]

    def joined(self, figure: Figure, sites: str | float = "mean") -> Mapping[str, Mapping[int, float]]:
        """A figure of every run, its sites taken together.

        Args:
            figure: Which.
            sites: "mean" (plain, of the sites that have it), "sum", "lowest", "highest", the name of one site; or a
                number from 1 to e, FedEE's eta: e weighs a site by its test images.

        Returns:
            By row, and then by seed in their order; a run whose sites all lack the figure is left out.
        """
        if (figure, sites) not in self._joined:
            found: dict[str, dict[int, float]] = {}
            for (row, seed), value in self._over_sites(self.figure(figure), sites).dropna().sort_index().items():
                found.setdefault(row, {})[seed] = value
            self._joined[figure, sites] = found
        return self._joined[figure, sites]

    def values(self, row: str, figure: Figure, sites: str | float = "mean") -> list[float]:
        """A figure of a row for each of its seeds that has it, in their order."""
        return list(self.joined(figure, sites).get(row, {}).values())

    def gaps(self, row: str, other: str, figure: Figure, sites: str | float = "mean") -> list[float]:
        """A row less another for each seed that both have, over the sites at which both have the figure."""
        ours, theirs = (_of_row(self.figure(figure), name) for name in (row, other))
        gaps = pd.concat([(ours - theirs).dropna()], keys=[row], names=["row"])
        found: list[float] = self._over_sites(gaps, sites).dropna().sort_index().tolist()
        return found

    def of_row(self, row: str, figure: Figure) -> pd.Series:
        """A figure of each run of a row, and of each site where sites have it; NaN where it is missing."""
        return _of_row(self.figure(figure), row)

    def courses(self, row: str, figures: Sequence[tuple[Figure, str | float]]) -> list[list[float]]:
        """Several figures of each seed that has them all, such as those of a curve.

        Args:
            row: The row.
            figures: Each with how its sites are joined.
        """
        curves = [self.joined(*one).get(row, {}) for one in figures]
        seeds = [seed for seed in curves[0] if all(seed in curve for curve in curves)] if curves else []
        return [[curve[seed] for curve in curves] for seed in seeds]

    def _read(self, figure: str) -> pd.Series:
        for frame in (self.sites, self.runs):
            if figure in frame:
                return frame[figure]
        return pd.Series(index=self.sites.index, dtype="float64")

    def _over_sites(self, found: pd.Series, sites: str | float) -> pd.Series:
        if "site" not in found.index.names:
            return found
        by_run = found.groupby(level=list(RUN), sort=False)
        if isinstance(sites, int | float):
            weights = (self.figure(self._size) ** log(sites)).reindex(found.index).where(found.notna())
            total = weights.groupby(level=list(RUN), sort=False).sum(min_count=1)
            return (found * weights).groupby(level=list(RUN), sort=False).sum(min_count=1) / total
        if sites == "sum":
            return by_run.sum(min_count=1)
        if sites in ("mean", "lowest", "highest"):
            return getattr(by_run, {"mean": "mean", "lowest": "min", "highest": "max"}[sites])()
        return found[found.index.get_level_values("site") == sites].droplevel("site")


@dataclass(frozen=True)
class OfRun:
    """A figure of whole runs, where sites have one of the same name.

    Attributes:
        place: Where it stands in the run's record.
    """

    place: str

    def __call__(self, records: Records) -> pd.Series:
        """Its values, by row and seed."""
        runs = records.runs
        return runs[self.place] if self.place in runs else pd.Series(index=runs.index, dtype="float64")


def _of_row(found: pd.Series, row: str) -> pd.Series:
    return found[found.index.get_level_values("row") == row].droplevel("row")


def _frame(numbers: Mapping[tuple[Any, ...], Mapping[str, float]], names: Sequence[str]) -> pd.DataFrame:
    index = (
        pd.MultiIndex.from_tuples(list(numbers), names=names)
        if numbers
        else pd.MultiIndex.from_arrays([[] for _ in names], names=names)
    )
    return pd.DataFrame(list(numbers.values()), index=index, dtype="float64")


def _numbers(held: Any, place: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(held, Mapping):
        for key, one in held.items():
            yield from _numbers(one, f"{place}.{key}" if place else str(key))
    elif isinstance(held, list | tuple):
        for at, one in enumerate(held):
            yield from _numbers(one, f"{place}.{at}")
    elif isinstance(held, bool | int | float):
        yield place, float(held)
