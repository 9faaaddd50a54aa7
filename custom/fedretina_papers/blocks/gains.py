"""What rows together gave in a stored block, beside every row alone."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedretina.report.text import NONE
from fedretina_papers.blocks.page import read_runs, stored_plan
from fedretina_papers.blocks.plan import BlockCase, BlockPlan, Size
from fedretina_papers.blocks.said import Said
from fedretina_papers.blocks.tables import (
    Runs,
    comparisons,
    difference,
    has_all,
    images_held,
    usual_passes,
    whole_draws,
)
from fedretina_papers.engine.table import bytes_told, passes_told
from fedretina_papers.markdown import listed
from fedretina_papers.packed import unpack
from fedretina_papers.statistics.beats_every import Against

FIGURE = "referable_auc"
"""What most blocks of photographs are judged by."""


class Block(NamedTuple):
    """A block that has run.

    Attributes:
        plan: Its plan.
        sets: What is told of its sets, by name.
        cases: Its runs by size, for each case; sizes that have not run to their end are left out.
    """

    plan: BlockPlan
    sets: Mapping[str, Any]
    cases: Sequence[tuple[BlockCase, Mapping[Size, Runs]]]

    def said(self, at: int = 0) -> Said:
        """What prose may ask of a case."""
        case, sizes = self.cases[at]
        return Said({size: (self.plan.at(size, case), runs) for size, runs in sizes.items()})


class Gain(NamedTuple):
    """What a row together gave at a number of images, over hospitals and draws, by one figure.

    Attributes:
        size: Images a hospital.
        images: Fewest training images of a hospital, the median, and most.
        ways: Rows alone on the encoder as it comes, of which the best is taken, by the mean of the hospitals.
        alone: Its mean.
        together: Mean of the row together.
        low: Lower end of the 95 % interval of together less alone.
        high: Upper end.
        worst_alone: The lowest hospital, mean of the draws.
        best: Mean of the best row alone, on whichever encoder.
        worst_best: Its lowest hospital.
        worst: That of the row together.
        against: Against every row alone: the row's test, and what could be seen; None where the figure has none.
        bound: Best mean of the rows on all images in one place.
        gained: Hospitals whose mean over the draws is higher together than by every row alone.
        hospitals: Of so many.
        most_lost: How much lower the hospital that loses most is together than by its best row alone; 0 where none is.
        sets: Best mean alone, mean together, number of hospitals, and mean of `bound`'s row, by set.
        passes: Over a hospital's training images: alone, the best alone on whichever encoder, and together.
        sent: What a hospital sends together, in print.
    """

    size: Size
    images: tuple[int, int, int]
    ways: int
    alone: float
    together: float
    low: float | None
    high: float | None
    worst_alone: float
    best: float
    worst_best: float
    worst: float
    against: Against | None
    bound: float
    gained: int
    hospitals: int
    most_lost: float
    sets: Mapping[str, tuple[float, float, int, float]]
    passes: tuple[str, str, str]
    sent: str


def stored_block(file: Path) -> Block:
    """Read a packed block.

    Raises:
        StateError: It is missing or damaged.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "block"
        unpack(file, out)
        plan, sets = stored_plan(out)
        cases = []
        for case in plan.cases:
            runs = {
                size: whole_draws(plan.at(size, case), read_runs(plan, case, size, out)) for size in plan.sizes_of(case)
            }
            cases.append((case, {size: kept for size, kept in runs.items() if has_all(plan.at(size, case), kept)}))
    return Block(plan, sets, cases)


def gains(block: Block, row: str, case: int = 0, figure: str = FIGURE) -> list[Gain]:
    """What a row together gave at every size of a case, beside every row alone."""
    return [_gain(block.plan, runs, size, row, figure) for size, runs in block.cases[case][1].items()]


def _gain(plan: BlockPlan, runs: Runs, size: Size, row: str, figure: str) -> Gain:
    rows = [one for one in plan.rows if one.role == "alone" and one.kind != "majority" and one.name in runs]
    pooled = [one.name for one in plan.rows if one.role == "pooled" and one.name in runs]
    plain = [one.name for one in rows if not one.start]
    means = {name: by_hospital(runs[name], figure) for name in (*(one.name for one in rows), *pooled, row)}
    control = max(plain, key=lambda name: fmean(means[name].values()))
    best = max((one.name for one in rows), key=lambda name: fmean(means[name].values()))
    bound = max((means[name] for name in pooled), key=lambda found: fmean(found.values()))
    test, _ = difference(runs, row, control, figure)
    alone, together = means[control], means[row]
    leads = _leads(together, [means[one.name] for one in rows])
    usual = usual_passes(plan, runs)
    costs = {name: costs_told(list(runs[name].values()), usual) for name in (control, best, row)}
    sets: dict[str, list[str]] = {}
    for name in alone:
        sets.setdefault(name.rsplit("-", 1)[0], []).append(name)
    return Gain(
        size,
        images_held(runs),
        len(plain),
        fmean(alone.values()),
        fmean(together.values()),
        test.low,
        test.high,
        worst(runs[control], figure),
        fmean(means[best].values()),
        worst(runs[best], figure),
        worst(runs[row], figure),
        next((one for one in comparisons(plan, runs)[row] if one.figure == figure), None),
        fmean(bound.values()),
        sum(lead > 0 for lead in leads),
        len(leads),
        max(0.0, -min(leads)),
        {
            one: (
                fmean(alone[name] for name in names),
                fmean(together[name] for name in names),
                len(names),
                fmean(bound[name] for name in names),
            )
            for one, names in sorted(sets.items())
        },
        (costs[control][0], costs[best][0], costs[row][0]),
        costs[row][1],
    )


def _leads(together: Mapping[str, float], alone: Sequence[Mapping[str, float]]) -> list[float]:
    """Of each hospital how far it is above the best of some rows alone."""
    return [one - max(means[hospital] for means in alone) for hospital, one in together.items()]


def costs_told(runs: Sequence[Mapping[str, Any]], usual: float) -> list[str]:
    """Passes over the images and bytes sent of a row's runs, in print.

    Args:
        runs: The runs.
        usual: Passes of the network trained alone that has the fewest; more are marked.
    """
    sent = [run["bytes_up"] for run in runs]
    return [passes_told([run["passes"] for run in runs], usual), bytes_told(sent) if any(sent) else NONE]


def by_hospital(runs: Mapping[int, Mapping[str, Any]], figure: str) -> dict[str, float]:
    """A row's figure at each hospital, mean of the draws that have one."""
    found: dict[str, list[float]] = {}
    for record in runs.values():
        for name, one in record["sites"].items():
            if (value := one["test"].get(figure)) is not None:
                found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}


def worst(runs: Mapping[int, Mapping[str, Any]], figure: str) -> float:
    """The lowest hospital of each draw, mean of the draws."""
    lowest = []
    for record in runs.values():
        values = [value for one in record["sites"].values() if (value := one["test"].get(figure)) is not None]
        lowest += [min(values)] if values else []
    return fmean(lowest)


class Leads(NamedTuple):
    """Where a row beats every row alone.

    Attributes:
        seen: In how many cases and sizes it does so by all primary figures.
        cells: Of so many.
        p: The largest p of all of them, after Holm's adjustment.
    """

    seen: int
    cells: int
    p: float


def leads_of(block: Block, row: str) -> Leads:
    """In how many cases and sizes a row together beats every row alone by all primary figures."""
    cells = [comparisons(block.plan, runs)[row] for _, sizes in block.cases for runs in sizes.values()]
    known = [1.0 if one.adjusted is None else one.adjusted for each in cells for one in each]
    return Leads(sum(all(one.helps for one in each) for each in cells), len(cells), max(known))


def where_seen(block: Block, figure: str, row: str | None = None) -> str:
    """At which cases and sizes a row, or any row together, beats every row alone by a figure, in words."""
    told = []
    for case, sizes in block.cases:
        at = []
        for size, runs in sizes.items():
            tests = [one for name, each in comparisons(block.plan, runs).items() if row in (None, name) for one in each]
            at += [size_told(size)] if any(one.helps for one in tests if one.figure == figure) else []
        told += [f"{case.title.lower()} with {listed(at)} of the labels"] if at else []
    return " and at ".join(told) if told else "none"


def size_told(size: Size) -> str:
    """A number of images, or a share of the labels, in words: "5 %"."""
    return str(size).replace("%", " %")
