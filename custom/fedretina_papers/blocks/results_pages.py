"""What came out of the blocks: a page for the doctor, one for the researcher, README's first table, that of `analytic`.

`python -m fedretina_papers.blocks.results_pages` writes docs/does_it_help.md, docs/results.md, README's first table and
that of docs/analytic.md from what is stored.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedretina.report.text import NONE
from fedretina.settings.scalars import MIN_COUNT
from fedretina.settings.training import LEAST_PATIENTS
from fedretina.storage import write_text
from fedretina_papers.blocks.page import read_runs, stored_plan, uncounted
from fedretina_papers.blocks.plan import BlockCase, BlockPlan, Size
from fedretina_papers.blocks.tables import (
    Runs,
    comparisons,
    has_all,
    images_held,
    lead_table,
    usual_passes,
    whole_draws,
)
from fedretina_papers.engine.page import page, write_page
from fedretina_papers.engine.table import bytes_told, passes_told
from fedretina_papers.markdown import between
from fedretina_papers.packed import SUFFIX, unpack
from fedretina_papers.statistics.beats_every import Against

SHARED = "sums_both"
"""The row that a doctor's page speaks of: what `fedretina` gives in one message (row `analytic`) by its defaults."""
HELD = "sums_both_held"
"""The same with the default policy too, which keeps grades of few patients out of the message."""
JOINED = "joined"
"""Heads from sums over all stages joined with FedAvg's, a row of our own."""
BLOCKS = ("f1", "f2", "trunk", "e1", "e1_scans", "o1", "p1", "p1_photographs", "f3", "f3_scans")
_FIGURE = "referable_auc"
_FIRST = (_FIGURE, "kappa")
_BEGIN, _END = "<!-- from blocks/results_pages.py -->", "<!-- end -->"
_PHOTOGRAPHS = {
    "majority": "the commonest grade, for every image",
    "probe": "own head on the frozen encoder, nothing shared",
    "singleset": "a head trained alone",
    "singleset_slow_even": "the same at a lower rate, answering as if its grades were equally common",
    "sums_both_held": "`analytic` by its defaults: mean of own and shared head, one message",
    "fedavg": "`fedavg`, a shared head, 20 rounds",
    "joined": "heads from sums over all stages joined with that of `fedavg` (ours; not in the product yet)",
    "pooled": "the network of `fedavg` on all images in one place",
    "pooled_exits": "the network of `fedee`, with early exits, on all images in one place",
}
"""Rows of README's first table on photographs, and on scans below."""
_SCANS = {
    "majority": "the commonest grade, for every image",
    "probe": "own head on the frozen encoder, nothing shared",
    "alone": "a head trained alone",
    "alone_moco": "the same, its encoder pre-trained without labels on all scans of its set, more than a client has",
    "alone_moco_even": "the same, answering as if its grades were equally common",
    "sums_both": "`analytic`: mean of own and shared head, one message",
    "fedavg": "`fedavg`, a shared head, 20 rounds",
    "moco_scaffold": "`scaffold`, 20 rounds, on an encoder that four clients pre-trained without labels",
    "pooled": "the network of `fedavg` on all scans in one place",
    "moco_pooled": "the same on that encoder, all scans in one place",
}

_ANSWERS = {
    "majority": "the commonest grade, for every image",
    "probe": "own head on the frozen encoder, nothing shared: `own`",
    "singleset": "a head trained alone",
    "sums": "`federated`, every grade",
    "sums_both": "`both`, every grade",
    "sums_held": "`federated`, by the default policy",
    "sums_both_held": "`both`, by the default policy",
    "fedavg": "`fedavg`, a shared head, 20 rounds",
    "pooled": "the network of `fedavg` on all images in one place",
}
"""Rows of the tables of docs/analytic.md."""


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


class Gain(NamedTuple):
    """What a row together gave at a number of images, over hospitals and draws, by one figure.

    Attributes:
        size: Images a hospital.
        images: Fewest training images of a hospital, the median, and most.
        ways: Rows alone on the same encoder that the best of is taken, by the mean of the hospitals.
        alone: Its mean.
        together: Mean of the row together.
        low: Lower end of the difference's 95 % interval.
        high: Upper end.
        worst_alone: The lowest hospital, mean of the draws.
        worst: The same of the row together.
        gained: Hospitals whose mean over the draws is higher together than by every row alone on the same encoder.
        elsewhere: Best mean of a row alone on another encoder; None where there is none.
        gained_over_all: Hospitals that gained over the rows alone on every encoder.
        hospitals: Of so many.
        most_lost: How much lower the hospital that loses most is together than by its best row alone; 0 where none is.
        sets: Mean alone, mean together and number of hospitals, by set.
        passes: Over a hospital's training images, alone and together.
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
    worst: float
    gained: int
    elsewhere: float | None
    gained_over_all: int
    hospitals: int
    most_lost: float
    sets: Mapping[str, tuple[float, float, int]]
    passes: tuple[str, str]
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
            runs = {size: whole_draws(plan.at(size), read_runs(plan, case, size, out)) for size in plan.sizes_of(case)}
            cases.append((case, {size: kept for size, kept in runs.items() if has_all(plan.at(size), kept)}))
    return Block(plan, sets, cases)


def gains(block: Block, case: int = 0, row: str = SHARED, figure: str = _FIGURE) -> list[Gain]:
    """What a row together gave at every size of a case, beside the rows alone on the encoder that it stands on."""
    start = block.plan.row(row).start
    like = block.plan.model_copy(
        update={"rows": tuple(one for one in block.plan.rows if one.start == start), "pairs": (), "reference": ""}
    )
    others = [
        one.name for one in block.plan.rows if one.role == "alone" and one.kind != "majority" and one.start != start
    ]
    return [_gain(like, others, runs, size, row, figure) for size, runs in block.cases[case][1].items()]


def _gain(plan: BlockPlan, others: Sequence[str], runs: Runs, size: Size, row: str, figure: str) -> Gain:
    rows = [one.name for one in plan.rows if one.role == "alone" and one.kind != "majority" and one.name in runs]
    others = [name for name in others if name in runs]
    means = {name: _by_hospital(runs[name], figure) for name in (*rows, *others, row)}
    control = max(rows, key=lambda name: fmean(means[name].values()))
    (against,) = (one for one in comparisons(plan, runs)[row] if one.figure == figure)
    interval: Mapping[str, Any] = against.test._asdict()
    alone, together = means[control], means[row]
    leads = _leads(together, [means[name] for name in rows])
    usual = usual_passes(plan, runs)
    (trained, _), (apart, sent) = (_costs(list(runs[name].values()), usual) for name in (control, row))
    sets: dict[str, list[str]] = {}
    for name in alone:
        sets.setdefault(name.rsplit("-", 1)[0], []).append(name)
    return Gain(
        size,
        images_held(runs),
        len(rows),
        fmean(alone.values()),
        fmean(together.values()),
        interval["low"],
        interval["high"],
        _worst(runs[control], figure),
        _worst(runs[row], figure),
        sum(lead > 0 for lead in leads),
        max((fmean(means[name].values()) for name in others), default=None),
        sum(lead > 0 for lead in _leads(together, [means[name] for name in (*rows, *others)])),
        len(leads),
        max(0.0, -min(leads)),
        {
            one: (fmean(alone[name] for name in names), fmean(together[name] for name in names), len(names))
            for one, names in sorted(sets.items())
        },
        (trained, apart),
        sent,
    )


def _leads(together: Mapping[str, float], alone: Sequence[Mapping[str, float]]) -> list[float]:
    """Of each hospital how far it is above the best of some rows alone."""
    return [one - max(means[hospital] for means in alone) for hospital, one in together.items()]


def _rare(block: Block, case: int) -> float:
    """How much the default policy costs at most, over the sizes of a case."""
    return max(
        one.together - held.together for one, held in zip(gains(block, case), gains(block, case, HELD), strict=True)
    )


def _by_hospital(runs: Mapping[int, Mapping[str, Any]], figure: str) -> dict[str, float]:
    """A row's figure at each hospital, mean of the draws that have one."""
    found: dict[str, list[float]] = {}
    for record in runs.values():
        for name, one in record["sites"].items():
            if (value := one["test"].get(figure)) is not None:
                found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}


def _worst(runs: Mapping[int, Mapping[str, Any]], figure: str) -> float:
    """The lowest hospital of each draw, mean of the draws."""
    lowest = []
    for record in runs.values():
        values = [value for one in record["sites"].values() if (value := one["test"].get(figure)) is not None]
        lowest += [min(values)] if values else []
    return fmean(lowest)


def place(plan: BlockPlan, runs: Runs, row: str, figure: str) -> int:
    """A row's place by the mean of a figure of which more is better, from 1, among all rows without pooled images."""
    names = [one.name for one in plan.rows if one.role != "pooled" and one.name in runs]
    means = {name: fmean(_by_hospital(runs[name], figure).values()) for name in names}
    return 1 + sum(mean > means[row] for mean in means.values())


def against_alone(block: Block, row: str, figure: str = _FIGURE) -> dict[Size, Against]:
    """A row together against the row alone that it beats least, by size; of the first case."""
    return {
        size: next(one for one in comparisons(block.plan, runs)[row] if one.figure == figure)
        for size, runs in block.cases[0][1].items()
    }


class Shown(NamedTuple):
    """Rows of a table, at each number of images.

    Attributes:
        hospitals: How many there are.
        heads: Of its columns: images a hospital.
        rows: Title, the figures at each number of images, and what they cost: passes over the images and bytes sent.
    """

    hospitals: int
    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def _shown(block: Block, at: int, titles: Mapping[str, str], figures: Sequence[str], places: int = 2) -> Shown:
    case, sizes = block.cases[at]
    heads = [
        f"n = {size}"
        if isinstance(size, int)
        else f"{size.replace('%', ' % of the labels')}, median {images_held(runs)[1]}"
        for size, runs in sizes.items()
    ]
    rows, usual = [], min(usual_passes(block.plan, runs) for runs in sizes.values())
    for row, title in titles.items():
        cells = [
            " / ".join(f"{fmean(_by_hospital(runs[row], figure).values()):.{places}f}" for figure in figures)
            for runs in sizes.values()
        ]
        every = [run for runs in sizes.values() for run in runs[row].values()]
        rows.append((title, [*cells, *_costs(every, usual)]))
    return Shown(sum(case.hospitals.values()), [*heads, "training passes", "sent per hospital"], rows)


def _costs(runs: Sequence[Mapping[str, Any]], usual: float) -> list[str]:
    sent = [run["bytes_up"] for run in runs]
    return [passes_told([run["passes"] for run in runs], usual), bytes_told(sent) if any(sent) else NONE]


def readme_table(f1: Block, o1: Block) -> str:
    """README's first table: rows with their controls, at each number of images."""
    many = gains(f1, row=HELD)
    return page(
        "readme.md.j2",
        photographs=_shown(f1, 0, _PHOTOGRAPHS, _FIRST),
        scans=_shown(o1, len(o1.cases) - 1, _SCANS, ("auc", "balanced_accuracy")),
        defaults=[many[0], many[-1]],
        fewest=MIN_COUNT,
        uncounted=uncounted(o1.plan, o1.sets, [o1.cases[-1][0]]),
    ).strip()


def answers_table(photographs: Block, f1: Block) -> str:
    """The tables of docs/analytic.md: what heads from sums answer with, beside their controls.

    Args:
        photographs: P1 on photographs, whose sites have one camera each.
        f1: F1, where several hospitals have like cameras.
    """
    parts = []
    for title, block in (("sites of unlike cameras", photographs), ("hospitals, several of each camera", f1)):
        rows = {row.name for row in block.plan.rows}
        titles = {row: words for row, words in _ANSWERS.items() if row in rows}
        parts.append((title, _shown(block, 0, titles, ("auc", _FIGURE), 3)))
    means = [
        {row: fmean(_by_hospital(runs[row], _FIGURE).values()) for row in (SHARED, HELD)}
        for runs in f1.cases[0][1].values()
    ]
    lost = [f"{one[SHARED] - one[HELD]:.3f}" for one in means]
    return page("analytic.md.j2", parts=parts, many=parts[-1][1], lost=lost).strip()


def write_results(results: Path, docs: Path, readme: Path) -> None:
    """Write both pages and both tables.

    Args:
        results: Folder of the stored blocks.
        docs: Folder of the pages; analytic.md holds its table between two marks.
        readme: Holds its table between two marks.

    Raises:
        StateError: A block is missing or damaged.
    """
    blocks = {name: stored_block(results / f"{name}{SUFFIX}") for name in BLOCKS}
    f1, f2, e1, o1 = (blocks[name] for name in ("f1", "f2", "e1", "o1"))
    tables = {readme: readme_table(f1, o1), docs / "analytic.md": answers_table(blocks["p1_photographs"], f1)}
    for file, shown in tables.items():
        write_text(file, between(file.read_text(encoding="utf-8"), _BEGIN, _END, shown))
    write_page(
        "does_it_help.md.j2",
        docs / "does_it_help.md",
        many=gains(f1, row=HELD),
        every=gains(f1),
        unlike=gains(f1, 1, HELD),
        graded=against_alone(f1, HELD, "kappa"),
        grades=gains(f1, row=HELD, figure="kappa"),
        rare=_rare(f1, 0),
        rare_unlike=_rare(f1, 1),
        fewest=MIN_COUNT,
        enough=LEAST_PATIENTS,
        newcomer=gains(f2, row=HELD),
        seen=against_alone(f2, HELD),
        scans=[(case.title, gains(o1, at, figure="auc")) for at, (case, sizes) in enumerate(o1.cases) if sizes],
        uncounted=uncounted(o1.plan, o1.sets, [case for case, sizes in o1.cases if sizes]),
        doubt=against_alone(e1, SHARED, "error_auroc"),
    )
    cases = [(block.plan, case, sizes) for block in blocks.values() for case, sizes in block.cases if sizes]
    leads = [(plan, case, lead_table(plan, sizes)) for plan, case, sizes in cases]
    alike = f1.cases[0][1]
    places = {one: [place(f1.plan, runs, JOINED, one) for runs in alike.values()] for one in (*_FIRST, "auc")}
    write_page(
        "results.md.j2",
        docs / "results.md",
        leads=leads,
        fewest=MIN_COUNT,
        joined={figure: [str(one) for one in found] for figure, found in places.items()},
        joined_at=[str(size) for size in alike],
    )


def main() -> int:
    """Write both pages of this project's docs, README's table and that of `analytic`."""
    root = Path(__file__).resolve().parents[3]
    write_results(root / "benchmarks" / "results", root / "docs", root / "README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
