"""All runs of a block, each stored as it ends: it may be stopped and taken up again by the same command."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from fedretina.errors import FedretinaError, SettingsError
from fedretina.locks import folder_lock
from fedretina.storage import read_json, write_json
from fedretina_papers.blocks.plan import BlockPlan, BlockRow, BlockStart
from fedretina_papers.blocks.runs import BlockRuns, Draw, Outcome
from fedretina_papers.processes import ended, pool
from fedretina_papers.runner import Told

PLAN = "plan.json"
_FIXED = ("without", "figures", "least", "resamples", "experiment", "tuning_draw", "tuning_size")


def run_block(
    plan: BlockPlan,
    out: Path,
    jobs: int,
    tell: Callable[[Told], None],
    said: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> dict[str, str]:
    """Tune the rows, then run every row at every size and draw; controls come before methods.

    Size by size, and draw by draw in each, so that a block that is stopped has whole tables of the smallest sizes.

    Args:
        plan: The plan; a folder that holds another plan's results is refused.
        out: Folder of the block.
        jobs: Draws at a time, each in a process of its own.
        tell: Called after each run, of several at a time after each draw.
        said: Called while images are read.

    Returns:
        Why runs are missing, by "case, row, size, draw"; empty when all are stored.

    Raises:
        SettingsError: The folder belongs to another plan.
        DataError: A set cannot be used.
        StateError: A process of several ended abruptly.
    """
    with folder_lock(out, 0):
        told = plan.model_dump(mode="json", exclude={"sites", "encoders"}) | {"encoders": _encoders(plan)}
        _require_alike(told, out)
        block = BlockRuns(plan, out, said)
        seen = {plan.shown(plan.row(name, case.name)) for case in plan.cases for name in plan.names(case)}
        for shown in ("", *sorted(seen - {""})):
            block.sets(shown)  # before any run, and before processes share the caches
        write_json(out / PLAN, {**told, "sets": {name: one.told() for name, one in block.sets("").items()}})
        draws = [
            Draw(case.name, size, draw)
            for case in plan.cases
            for size in plan.sizes_of(case)
            for draw in range(plan.draws)
        ]
        total = sum(len(plan.at(draw.size, plan.case(draw.case)).rows) for draw in draws)
        waiting = {draw: rows for draw in draws if (rows := block.waiting(draw))}
        left = sum(map(len, waiting.values()))
        done, missing, began = total - left, dict[str, str](), time.monotonic()
        for outcome in _outcomes(block, list(waiting), jobs):
            done += 1
            if outcome.failed:
                missing[outcome.name] = outcome.words
            each = (time.monotonic() - began) / (done + left - total)
            tell(Told(done, total, f"{outcome.name}: {outcome.words}", each * (total - done)))
        return missing


def _outcomes(block: BlockRuns, draws: Sequence[Draw], jobs: int) -> Iterator[Outcome]:
    """All runs of the draws: one after the other as they end, or those of a draw together, in processes of their own.

    Processes tune first, row by row, so that no two tune the same.
    """
    if jobs == 1 or not draws:
        for draw in draws:
            yield from block.runs(draw)
        return
    settings = block.plan.model_dump(mode="json")
    with pool(jobs) as workers:
        cases = [block.plan.case(name) for name in dict.fromkeys(draw.case for draw in draws)]
        named = [(one.name, block.plan.row(name)) for one in cases for name in block.plan.names(one)]
        parts = [(case, block.plan.row(name)) for case, row in named for name in (*row.parts, row.of) if name]
        asked = dict.fromkeys((case, row.name) for case, row in (*named, *parts) if row.tune)
        for _, tuned in ended(workers, jobs, [(one, partial(_tune, settings, block.out, *one)) for one in asked]):
            tuned.result()
        for _, ran in ended(workers, jobs, [(draw, partial(_runs, settings, block.out, draw)) for draw in draws]):
            yield from ran.result()


def _tune(settings: Mapping[str, Any], out: Path, case: str, row: str) -> None:
    block = BlockRuns(BlockPlan.model_validate(settings), out)
    with suppress(FedretinaError):  # its runs will say so
        block.tuned(case, block.plan.row(row))


def _runs(settings: Mapping[str, Any], out: Path, draw: Draw) -> list[Outcome]:
    return list(BlockRuns(BlockPlan.model_validate(settings), out).runs(draw))


def require_alike(plan: BlockPlan, out: Path) -> None:
    """Refuse a folder that holds another plan's runs, before anything is done for them.

    Raises:
        SettingsError: It does, or it holds runs on encoders that were given to it.
    """
    _require_alike(plan.model_dump(mode="json", exclude={"sites", "encoders"}) | {"encoders": _encoders(plan)}, out)


def _require_alike(told: Mapping[str, Any], out: Path) -> None:
    """Rows, cases, sizes and draws may be added later; what a stored run depends on may not change."""
    if not (out / PLAN).exists() or not (out / "results").is_dir():
        return
    held = read_json(out / PLAN)
    other = [name for name in _FIXED if held.get(name) != told[name]]
    # Read again, so that what the rows of an earlier version leave out is its default.
    rows = {row["name"]: BlockRow.model_validate(row).model_dump(mode="json") for row in held["rows"]}
    in_print = dict.fromkeys(("title", "role", "twin"))
    changed = (row for row in told["rows"] if row["name"] in rows and row | in_print != rows[row["name"]] | in_print)
    other += [f"row {row['name']}" for row in changed]
    cases = {case["name"]: case | {"rows": []} for case in held["cases"]}
    mine = {case["name"]: case | {"rows": []} for case in told["cases"]}
    ran = [
        name for name in cases if (out / "results" / name).is_dir()
    ]  # one that is left out would come back as another
    other += [
        f"case {name}" for name, case in cases.items() if mine.get(name, case if name not in ran else None) != case
    ]
    other += ["starts"] if _instead(held, cases) != _instead(told, cases) else []
    encoders = held.get("encoders", {})
    other += [f"encoder {name}" for name, one in told["encoders"].items() if encoders.get(name, one) != one]
    if other:
        raise SettingsError(
            f"the folder {out.name} holds runs that were begun with other settings ({', '.join(other)}): give this "
            "plan another folder."
        )


def _instead(told: Mapping[str, Any], cases: Container[str]) -> set[tuple[str, str, str]]:
    """Starts that stand in the place of another in one of these cases: of which, in which, which."""
    starts = (BlockStart.model_validate(one) for one in told.get("starts", ()))
    return {(one.of, one.case, one.name) for one in starts if one.case in cases}


def _encoders(plan: BlockPlan) -> dict[str, Any]:
    """What a page says of the encoders: digests in the place of files."""
    return {
        name: one.model_dump(mode="json", exclude={"files"})
        | {"files": {site: {"file": "", "sha256": held["sha256"]} for site, held in one.files.items()}}
        for name, one in plan.encoders.items()
    }
