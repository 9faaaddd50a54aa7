"""Tables of a block: every row beside the controls, and how sure it is that one helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from fedretina.corrections.gradients import RATIO
from fedretina.errors import StateError
from fedretina.report.text import NONE, number
from fedretina_papers.blocks.plan import LESS_IS_BETTER, BlockCase, BlockPlan, BlockRow, Size
from fedretina_papers.choices import Role
from fedretina_papers.engine.records import OfRun, Records
from fedretina_papers.engine.table import Column, Line, bytes_told, mean_number, passes_told, render, seeds
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
_ROLES = {"alone": "alone", "federated": "together", "pooled": "all images in one place"}


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
        columns.insert(-2, Column("correction over gradient", OfRun(RATIO), show=mean_number, places=2))
    return render(records, ["row", "who"], lines, columns)


def test_table(plan: BlockPlan, runs: Runs) -> list[str]:
    """Each federated row against the row alone that it beats least.

    Raises:
        StateError: Controls have not run.
    """
    require_controls(plan, runs)
    titles = {row.name: row.title for row in plan.rows}
    cells: dict[str, Against] = {}
    lines = []
    for name, each in comparisons(plan, runs).items():
        for one in each:
            key = f"{name} {one.figure}"
            cells[key] = one
            lines.append(Line((titles[name], TITLES[one.figure], titles[one.control]), key))
    columns = [
        Column("difference", told=lambda line: signed(cells[line.row].test.mean)),
        Column("95 %, draws and patients", told=lambda line: interval(cells[line.row].test._asdict())),
        Column("beats every row alone: p, Holm", told=lambda line: chance(cells[line.row].adjusted)),
        Column("smallest that could be seen", told=lambda line: number(cells[line.row].seen, 3)),
        *_costs(plan, runs, lambda line: (line.row.split()[0], cells[line.row].control)),
    ]
    return render(Records({}), ["row", "by", "least beaten"], lines, columns)


def reference_table(plan: BlockPlan, runs: Runs) -> list[str]:
    """Every row against the plan's reference, better or worse, for each primary figure; nothing without a reference.

    Raises:
        StateError: Controls have not run.
    """
    if not plan.reference:
        return []
    rows = [row.name for row in plan.rows if row.kind != "majority" and row.name in runs]
    pairs = [(name, plan.reference) for name in rows if name != plan.reference]
    return _pairs(plan, runs, pairs, [f"against {plan.row(plan.reference).title}"], lambda pair: (pair[0],))


def pair_table(plan: BlockPlan, runs: Runs) -> list[str]:
    """The plan's pairs of rows, better or worse, for each primary figure; nothing without pairs.

    Raises:
        StateError: Controls have not run.
    """
    pairs = [(one, other) for one, other in plan.pairs if one in runs and other in runs]
    return _pairs(plan, runs, pairs, ["row", "against"], lambda pair: pair) if pairs else []


def _pairs(
    plan: BlockPlan,
    runs: Runs,
    pairs: Sequence[tuple[str, str]],
    heads: Sequence[str],
    shown: Callable[[tuple[str, str]], tuple[str, ...]],
) -> list[str]:
    require_controls(plan, runs)
    keys = [(*pair, figure) for pair in pairs for figure in plan.figures[: plan.primary]]
    level = CLEAR / max(1, len(keys))
    tests = {" ".join(key): difference(runs, *key, level) for key in keys}
    p = dict(zip(tests, holm([test.p for test, _ in tests.values()]), strict=True))
    lines = [Line((*(plan.row(name).title for name in shown(key[:2])), TITLES[key[2]]), " ".join(key)) for key in keys]
    columns = [
        Column("difference", told=lambda line: signed(tests[line.row][0].mean)),
        Column("95 %, draws and patients", told=lambda line: interval(tests[line.row][0]._asdict())),
        Column("p, Holm", told=lambda line: chance(p[line.row])),
        Column("smallest that could be seen", told=lambda line: _visible(*tests[line.row])),
        *_costs(plan, runs, lambda line: (line.row.split()[0], line.row.split()[1])),
    ]
    return render(Records({}), [*heads, "by"], lines, columns)


def _costs(plan: BlockPlan, runs: Runs, both: Callable[[Line], tuple[str, str]]) -> list[Column]:
    """Passes and bytes of the two rows that a line of a table compares."""
    usual = usual_passes(plan, runs)
    passes = {name: passes_told([one["passes"] for one in ran.values()], usual) for name, ran in runs.items()}
    sent = {name: bytes_told([one["bytes_up"] for one in ran.values()]) for name, ran in runs.items()}
    return [
        Column("training passes of both", told=lambda line: " and ".join(passes[name] for name in both(line))),
        Column("sent per hospital by both", told=lambda line: " and ".join(sent[name] for name in both(line))),
    ]


def _visible(test: SeedTest, seen: float | None) -> str:
    return number(None if test.p is None else seen, 3)  # rows that never differ show nothing


def lead_table(plan: BlockPlan, sizes: Mapping[Size, Runs]) -> list[str]:
    """The best row of each kind at every size, and the federated one against the row alone that it beats least.

    Args:
        plan: The plan.
        sizes: Runs of a case by size, of such sizes alone as `has_all` rows.
    """
    titles = {row.name: row.title for row in plan.rows}
    lines, cells = [], {}
    costs: dict[str, tuple[str, str]] = {}
    for held, runs in sizes.items():
        against = {(name, one.figure): one for name, each in comparisons(plan, runs).items() for one in each}
        for figure in plan.figures[: plan.primary]:
            best = {role: _best(plan, runs, role, figure) for role in ("alone", "federated", "pooled")}
            told = tuple(NONE if one is None else f"{titles[one[0]]} {number(one[1], 3)}" for one in best.values())
            lead = best["federated"]
            key = f"{held} {figure}"
            cells[key] = None if lead is None else against[lead[0], figure]
            ran = [] if lead is None else list(runs[lead[0]].values())
            passes = passes_told([one["passes"] for one in ran], usual_passes(plan, runs))
            costs[key] = passes, bytes_told([one["bytes_up"] for one in ran])
            lines.append(Line((str(held), TITLES[figure], *told), key))

    def test(show: Callable[[Against], str]) -> Callable[[Line], str]:
        return lambda line: NONE if (one := cells[line.row]) is None else show(one)

    columns = [
        Column("lead", told=test(lambda one: signed(one.test.mean))),
        Column("95 %", told=test(lambda one: interval(one.test._asdict()))),
        Column("p, Holm", told=test(lambda one: chance(one.adjusted))),
        Column("smallest that could be seen", told=test(lambda one: number(one.seen, 3))),
        Column("its training passes", told=lambda line: costs[line.row][0]),
        Column("its bytes sent per hospital", told=lambda line: costs[line.row][1]),
    ]
    first = ["images", "by", "best alone", "best together", "best of all images in one place"]
    return render(Records({}), first, lines, columns)


def _best(plan: BlockPlan, runs: Runs, role: Role, figure: str) -> tuple[str, float] | None:
    """The row of a role with the best mean over draws, and that mean."""
    sign = -1 if figure in LESS_IS_BETTER else 1
    found = []
    for row in plan.rows:
        if row.role == role and row.name in runs:
            values = [value for one in runs[row.name].values() if (value := _mean(one, figure)) is not None]
            found += [(row.name, fmean(values))] if values else []
    return max(found, key=lambda one: sign * one[1], default=None)


def sets_table(sets: Mapping[str, Any], least: int) -> list[str]:
    """Images of each grade of each set; test images of grades that macro figures leave out are in brackets."""
    lines = []
    cells: dict[str, Sequence[str]] = {}
    for name, one in sets.items():
        tested = one["images"]["test"]
        told = ", ".join(
            f"{grade} {count}" if count >= least else f"({grade} {count})"
            for grade, count in zip(one["grades"], tested, strict=True)
        )
        cells[name] = (str(sum(one["images"]["train"])), str(sum(one["images"]["val"])), told)
        lines.append(Line((name,), name))
    titles = ("training images", "validation images", "test images by grade")
    columns = [Column(title, told=lambda line, at=at: cells[line.row][at]) for at, title in enumerate(titles)]  # type: ignore[misc]
    return render(Records({}), ["set"], lines, columns)


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
