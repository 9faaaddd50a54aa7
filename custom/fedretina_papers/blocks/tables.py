"""Tables of a block: every row beside the controls, and how sure it is that one helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedretina.corrections.gradients import RATIO
from fedretina.errors import StateError
from fedretina.report.text import NONE, number
from fedretina_papers.blocks.plan import LESS_IS_BETTER, BlockCase, BlockPlan, BlockRow, Size
from fedretina_papers.choices import Role
from fedretina_papers.engine.records import OfRun, Records
from fedretina_papers.engine.table import Column, Line, bytes_told, listing, median_number, passes_told, render, seeds
from fedretina_papers.markdown import chance, interval, listed, several, signed
from fedretina_papers.statistics.beats_every import CLEAR, Against, adjusted, hardest, helps_words
from fedretina_papers.statistics.multiple_tests import holm
from fedretina_papers.statistics.paired_seeds import SeedTest, seed_test, smallest_seen
from fedretina_papers.stored import Record

Runs = Mapping[str, Mapping[int, Record]]
"""Records of a case and a size, by row and draw."""

TITLES: Mapping[str, str] = {
    "referable_auc": "referable AUC",
    "kappa": "quadratic kappa",
    "auc": "macro AUC",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "error_auroc": "error AUROC",
    "aurc": "AURC",
    "ece": "ECE",
    "brier": "Brier score",
    "nll": "log loss",
}
_ROLES: Mapping[Role, str] = {"alone": "alone", "federated": "together", "pooled": "all images in one place"}
_BEST: Mapping[Role, str] = {**_ROLES, "pooled": "of all images in one place"}
_Thing = TypeVar("_Thing")


def whole_draws(plan: BlockPlan, runs: Runs) -> Runs:
    """The runs of those draws alone in which every control has run."""
    controls = [row.name for row in plan.rows if row.role != "federated"]
    whole = set.intersection(*(set(runs.get(name, {})) for name in controls))
    kept = {name: {draw: one for draw, one in each.items() if draw in whole} for name, each in runs.items()}
    return {name: each for name, each in kept.items() if each}


def images_held(runs: Runs) -> tuple[int, int, int]:
    """Fewest training images of a hospital over all draws, the median, and most."""
    records = next(iter(runs.values())).values()
    counts = [one["images"]["train"] for record in records for one in record["sites"].values()]
    return min(counts), round(median(counts)), max(counts)


def has_all(plan: BlockPlan, runs: Runs) -> bool:
    """Whether every row has run in every draw, so that means of rows are means of the same draws."""
    return all(len(runs.get(row.name, {})) == plan.draws for row in plan.rows)


def require_controls(plan: BlockPlan, runs: Runs) -> None:
    """Refuse to show a row without its controls.

    Raises:
        StateError: A row that stands alone, or the pooled one, lacks a draw that another row has.
    """
    drawn = {draw for one in runs.values() for draw in one}
    controls = [row.name for row in plan.rows if row.role != "federated"]
    lacking = [name for name in controls if not runs.get(name) or drawn - set(runs[name])]
    if lacking:
        raise StateError(f"these controls have not run in every draw yet: {listed(lacking)}.")


def comparisons(plan: BlockPlan, runs: Runs) -> dict[str, list[Against]]:
    """Each federated row against the rows alone, for each primary figure.

    A row helps where it beats *every* row alone. That is one test for each of them, all of which it has to pass, so the
    largest p is that of the whole; over rows and figures it is adjusted by Holm. Each test is paired by draw, with the
    chance of the patients, drawn in the same way for both rows, added to that of the draws.
    """
    alone = [row.name for row in plan.rows if row.role == "alone" and row.name in runs]
    together = [row.name for row in plan.rows if row.role == "federated" and row.name in runs]
    primary = plan.figures[: plan.primary]
    level = CLEAR / max(1, len(together) * len(primary))
    found = {
        name: [
            hardest(figure, {one: difference(runs, name, one, figure, level) for one in alone}) for figure in primary
        ]
        for name in together
    }
    return adjusted(found)


def difference(runs: Runs, row: str, other: str, figure: str, level: float = CLEAR) -> tuple[SeedTest, float | None]:
    """A row less another, in the direction that is better: the test over draws and patients, and what could be seen.

    Args:
        runs: Of a case and a size.
        row: The row.
        other: What is taken from it.
        figure: By which.
        level: Of the test that is to see a difference.
    """
    sign = -1 if figure in LESS_IS_BETTER else 1
    draws = sorted(set(runs[row]) & set(runs[other]))
    pairs = [(_mean(runs[row][draw], figure), _mean(runs[other][draw], figure)) for draw in draws]
    gaps = [sign * (one - two) for one, two in pairs if one is not None and two is not None]
    variance = _patients(runs, row, other, figure, draws)
    test = seed_test(gaps, variance)
    return test, smallest_seen(test.n, test.sd, variance, level=level)


def _mean(record: Record, figure: str) -> float | None:
    values = [value for one in record["sites"].values() if (value := one["test"].get(figure)) is not None]
    return fmean(values) if values else None


def mean_of(draws: Mapping[int, Record], figure: str) -> float | None:
    """A row's figure, mean of its hospitals and draws; None where none has it."""
    values = [value for one in draws.values() if (value := _mean(one, figure)) is not None]
    return fmean(values) if values else None


def _patients(runs: Runs, row: str, other: str, figure: str, draws: Sequence[int]) -> float:
    """Variance of the mean difference over drawn patients; 0 where the figure is not drawn."""
    columns = []
    for draw in draws:
        ours, theirs = (runs[name][draw]["drawn"].get(figure) for name in (row, other))
        if ours and theirs:
            columns.append(np.array(ours, dtype=np.float64) - np.array(theirs, dtype=np.float64))
    return float(np.nanvar(np.mean(columns, axis=0), ddof=1)) if columns else 0.0


def figure_table(plan: BlockPlan, runs: Runs) -> list[str]:
    """All figures of all rows, with what they cost and whether they help.

    Raises:
        StateError: Controls have not run.
    """
    require_controls(plan, runs)
    records = Records(runs)
    against = comparisons(plan, runs)
    usual = usual_passes(plan, runs)
    lines = [Line((row.title, _ROLES[row.role]), row.name) for row in plan.rows]
    figures = [
        Column(
            TITLES[name],
            f"test.{name}",
            better="lowest" if name in LESS_IS_BETTER else "highest",
        )
        for name in plan.figures
    ]
    worst = [
        Column(f"worst hospital's {TITLES[name]}", f"test.{name}", "highest" if name in LESS_IS_BETTER else "lowest")
        for name in plan.figures[: plan.primary]
    ]
    columns = [
        *figures,
        *worst,
        Column("training passes", OfRun("passes"), show=lambda values, _: passes_told(values, usual)),
        Column("sent per hospital", OfRun("bytes_up"), show=bytes_told),
        Column("received per hospital", OfRun("bytes_down"), show=bytes_told),
        Column("draws", f"test.{plan.figures[0]}", show=seeds),
        Column("helps", told=lambda line: _helps(against.get(line.row, ()))),
    ]
    if RATIO in records.runs:
        columns.insert(-2, Column("correction over gradient", OfRun(RATIO), show=median_number, places=2))
    return render(records, ["row", "who"], lines, columns)


def test_table(plan: BlockPlan, runs: Runs) -> list[str]:
    """Each federated row against the row alone that it beats least.

    Raises:
        StateError: Controls have not run.
    """
    require_controls(plan, runs)
    pairs = [(name, one) for name, each in comparisons(plan, runs).items() for one in each]
    columns: dict[str, Callable[[tuple[str, Against]], str]] = {
        "row": lambda pair: plan.row(pair[0]).title,
        "by": lambda pair: TITLES[pair[1].figure],
        "least beaten": lambda pair: plan.row(pair[1].control).title,
        "difference": lambda pair: signed(pair[1].test.mean),
        "95 %, draws and patients": lambda pair: interval(pair[1].test._asdict()),
        "beats every row alone: p, Holm": lambda pair: chance(pair[1].adjusted),
        "smallest that could be seen": lambda pair: number(pair[1].seen, 3),
        **_costs(plan, runs, lambda pair: (pair[0], pair[1].control)),
    }
    return listing(pairs, columns)


def reference_table(plan: BlockPlan, runs: Runs) -> list[str]:
    """Every row against the plan's reference, better or worse, for each primary figure; nothing without a reference.

    Raises:
        StateError: Controls have not run.
    """
    if not plan.reference:
        return []
    return _pairs(plan, runs, paired_with_reference(plan, runs), [f"against {plan.row(plan.reference).title}"])


def paired_with_reference(plan: BlockPlan, runs: Runs) -> list[tuple[str, str]]:
    """Every row with the plan's reference behind it; nothing without one."""
    rows = [row.name for row in plan.rows if row.kind != "majority" and row.name in runs]
    return [(name, plan.reference) for name in rows if plan.reference and name != plan.reference]


def pair_table(plan: BlockPlan, runs: Runs) -> list[str]:
    """The plan's pairs of rows, better or worse, for each primary figure; nothing without pairs.

    Raises:
        StateError: Controls have not run.
    """
    pairs = [(one, other) for one, other in plan.pairs if one in runs and other in runs]
    return _pairs(plan, runs, pairs, ["row", "against"]) if pairs else []


class Pair(NamedTuple):
    """A row less another, as a table of pairs tests it.

    Attributes:
        rows: Both.
        figure: By which.
        test: Over draws and patients, in the direction that is better.
        seen: The smallest difference that could be seen.
        adjusted: p after Holm's adjustment over the table.
    """

    rows: tuple[str, str]
    figure: str
    test: SeedTest
    seen: float | None
    adjusted: float | None


def paired_tests(plan: BlockPlan, runs: Runs, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
    """The tests of a table of pairs, for each primary figure, adjusted over the table."""
    keys = [(pair, figure) for pair in pairs for figure in plan.figures[: plan.primary]]
    level = CLEAR / max(1, len(keys))
    tests = [difference(runs, *pair, figure, level) for pair, figure in keys]
    adjusted = holm([test.p for test, _ in tests])
    return [Pair(*key, *test, p) for key, test, p in zip(keys, tests, adjusted, strict=True)]


def _pairs(
    plan: BlockPlan,
    runs: Runs,
    pairs: Sequence[tuple[str, str]],
    heads: Sequence[str],
) -> list[str]:
    require_controls(plan, runs)
    columns: dict[str, Callable[[Pair], str]] = {
        **{head: partial(_title, plan, at) for at, head in enumerate(heads)},
        "by": lambda one: TITLES[one.figure],
        "difference": lambda one: signed(one.test.mean),
        "95 %, draws and patients": lambda one: interval(one.test._asdict()),
        "p, Holm": lambda one: chance(one.adjusted),
        # rows that never differ show nothing
        "smallest that could be seen": lambda one: number(None if one.test.p is None else one.seen, 3),
        **_costs(plan, runs, lambda one: one.rows),
    }
    return listing(paired_tests(plan, runs, pairs), columns)


def _title(plan: BlockPlan, at: int, pair: Pair) -> str:
    return plan.row(pair.rows[at]).title


def _costs(
    plan: BlockPlan, runs: Runs, both: Callable[[_Thing], tuple[str, str]]
) -> dict[str, Callable[[_Thing], str]]:
    """Passes and bytes of the two rows that a line of a table compares."""
    usual = usual_passes(plan, runs)
    passes = {name: passes_told([one["passes"] for one in ran.values()], usual) for name, ran in runs.items()}
    sent = {name: bytes_told([one["bytes_up"] for one in ran.values()]) for name, ran in runs.items()}
    return {
        "training passes of both": lambda thing: " and ".join(passes[name] for name in both(thing)),
        "sent per hospital by both": lambda thing: " and ".join(sent[name] for name in both(thing)),
    }


class _Lead(NamedTuple):
    size: Size
    figure: str
    best: Mapping[Role, tuple[str, float] | None]
    lead: Against | None
    passes: Sequence[str]
    sent: str


def lead_table(plan: BlockPlan, sizes: Mapping[Size, Runs]) -> list[str]:
    """The best row of each kind at every size, and the federated one against the row alone that it beats least.

    Args:
        plan: The plan.
        sizes: Runs of a case by size, of such sizes alone as `has_all` rows.
    """
    found = []
    for held, runs in sizes.items():
        against = {(name, one.figure): one for name, each in comparisons(plan, runs).items() for one in each}
        for figure in plan.figures[: plan.primary]:
            best = {role: _best(plan, runs, role, figure) for role in _ROLES}
            lead = best["federated"]
            ran = [] if lead is None else list(runs[lead[0]].values())
            shown = [runs[one[0]].values() for one in best.values() if one is not None]
            passes = [passes_told([run["passes"] for run in each], usual_passes(plan, runs)) for each in shown]
            sent = bytes_told([one["bytes_up"] for one in ran])
            found.append(_Lead(held, figure, best, None if lead is None else against[lead[0], figure], passes, sent))

    def named(role: Role, one: _Lead) -> str:
        held = one.best[role]
        return NONE if held is None else f"{plan.row(held[0]).title} {number(held[1], 3)}"

    columns: dict[str, Callable[[_Lead], str]] = {
        "images": lambda one: str(one.size),
        "by": lambda one: TITLES[one.figure],
        **{f"best {who}": partial(named, role) for role, who in _BEST.items()},
        "lead": lambda one: NONE if one.lead is None else signed(one.lead.test.mean),
        "95 %": lambda one: NONE if one.lead is None else interval(one.lead.test._asdict()),
        "p, Holm": lambda one: NONE if one.lead is None else chance(one.lead.adjusted),
        "smallest that could be seen": lambda one: NONE if one.lead is None else number(one.lead.seen, 3),
        "training passes of the three": lambda one: ", ".join(one.passes),
        "bytes sent per hospital, together": lambda one: one.sent,
    }
    return listing(found, columns)


def _best(plan: BlockPlan, runs: Runs, role: Role, figure: str) -> tuple[str, float] | None:
    """The row of a role with the best mean over draws, and that mean."""
    sign = -1 if figure in LESS_IS_BETTER else 1
    found = []
    for row in plan.rows:
        if row.role == role and row.name in runs:
            mean = mean_of(runs[row.name], figure)
            found += [] if mean is None else [(row.name, mean)]
    return max(found, key=lambda one: sign * one[1], default=None)


def sets_table(sets: Mapping[str, Any], least: int) -> list[str]:
    """Images of each grade of each set; test images of grades that macro figures leave out are in brackets."""

    def tested(name: str) -> str:
        found = zip(sets[name]["grades"], sets[name]["images"]["test"], strict=True)
        return ", ".join(f"{grade} {n}" if n >= least else f"({grade} {n})" for grade, n in found)

    columns: dict[str, Callable[[str], str]] = {
        "set": str,
        "training images": lambda name: str(sum(sets[name]["images"]["train"])),
        "validation images": lambda name: str(sum(sets[name]["images"]["val"])),
        "test images by grade": tested,
    }
    return listing(sets, columns)


def left_out(case: BlockCase, sets: Mapping[str, Any], least: int) -> str:
    """At how many of the hospitals that are judged macro figures leave out which grade; "" where none."""
    judged = sum(case.hospitals[name] for name in case.judged)
    at: dict[str, list[tuple[int, str]]] = {}
    for name in case.judged:
        for grade, count in zip(sets[name]["grades"], sets[name]["images"]["test"], strict=True):
            if count < least:
                at.setdefault(grade, []).append((case.hospitals[name], f"{several(count, 'test image')} of {name}"))
    told = [
        f"{grade} at {sum(many for many, _ in places)} of {judged} hospitals ({listed([one for _, one in places])})"
        for grade, places in at.items()
    ]
    return listed(told) if told else ""


def _helps(against: Sequence[Against]) -> str:
    return helps_words({TITLES[one.figure]: one.adjusted for one in against}, "draws")


def usual_passes(plan: BlockPlan, runs: Runs) -> float:
    """Passes of the network trained alone that has the fewest; rows with more are marked."""
    alone = [row for row in plan.rows if row.role == "alone" and row.kind == "trained"]
    return min((float(one["passes"]) for row in alone for one in _of(runs, row)), default=0.0)


def _of(runs: Runs, row: BlockRow) -> Sequence[Record]:
    return list(runs.get(row.name, {}).values())
