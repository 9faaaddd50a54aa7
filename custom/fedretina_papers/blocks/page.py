"""The page of a block, from its stored runs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedretina.corrections.gradients import RATIO
from fedretina.errors import StateError
from fedretina.settings.scalars import MIN_COUNT
from fedretina.storage import read_json
from fedretina_papers.blocks.plan import PIXELS, BlockCase, BlockPlan, Size
from fedretina_papers.blocks.said import Said
from fedretina_papers.blocks.tables import (
    TITLES,
    Runs,
    figure_table,
    has_all,
    images_held,
    lead_table,
    left_out,
    pair_table,
    reference_table,
    sets_table,
    test_table,
    whole_draws,
)
from fedretina_papers.engine.page import write_page
from fedretina_papers.markdown import several
from fedretina_papers.plan import preset, presets
from fedretina_papers.tuning import tuned_words

_PROSE = ("title", "about", "reading")


def write_block_page(out: Path, page: Path) -> None:
    """Write the page.

    Args:
        out: The block's folder.
        page: The page.

    Raises:
        StateError: There is no plan, a record is damaged, or the page cannot be written.
    """
    plan, sets = stored_plan(out)
    sections, corrects, told = [], False, dict[Size, tuple[BlockPlan, Runs]]()
    for case in plan.cases:
        runs = {size: read_runs(plan, case, size, out) for size in plan.sizes_of(case)}
        corrects |= any(RATIO in one for rows in runs.values() for draws in rows.values() for one in draws.values())
        shown = [_of_size(plan.at(size, case), size, one) for size, one in runs.items()]
        whole = {size: one for size, one in runs.items() if has_all(plan.at(size, case), one)}
        told = told or {size: (plan.at(size, case), one) for size, one in whole.items()}
        sections.append({"title": case.title, "sizes": shown, "lead": lead_table(plan, whole) if whole else []})
    write_page(
        plan.page,
        page,
        plan=plan,
        reading=[Said(told).fill(paragraph) for paragraph in plan.reading],
        sections=sections,
        sets=sets_table(sets, plan.least),
        synthetic=[name for name, one in sets.items() if one["synthetic"]],
        tuned=_tuned(plan, out),
        left_out=uncounted(plan, sets, plan.cases),
        fewest=MIN_COUNT,
        figures=[TITLES[name] for name in plan.figures],
        corrects=corrects,
        one_head=_one_head(plan),
    )


def stored_plan(out: Path) -> tuple[BlockPlan, dict[str, Any]]:
    """The plan of stored runs, and what is told of its sets.

    Its prose is that of the package's plan of this name, where there is one: prose is mended after the runs, and the
    store keeps what it was when they began.

    Raises:
        StateError: There is no plan.
    """
    stored = read_json(out / "plan.json")
    sets = stored.pop("sets")
    name = str(stored["name"]).replace("_", "-")
    words = preset(name) if name in presets() else {}
    prose = {key: words[key] for key in _PROSE if key in words}
    return BlockPlan.model_validate({**stored, **prose, "sites": dict.fromkeys(sets)}), sets


def _one_head(plan: BlockPlan) -> bool:
    """Whether all images in one place train one head for all hospitals, behind an encoder that stands still."""
    shared = [plan.row(row.of).settings.get("exchange", {}) for row in plan.rows if row.role == "pooled" and row.of]
    frozen = all(plan.shown(row) != PIXELS for row in plan.rows)
    return frozen and all(one.get("personal") == "nothing" for one in shared)


def uncounted(plan: BlockPlan, sets: Mapping[str, Any], cases: Sequence[BlockCase]) -> list[tuple[str, str]]:
    """Which grades macro figures leave out at how many hospitals, by case; once, with title "", where all are alike."""
    if not {"auc", "balanced_accuracy"} & set(plan.figures):
        return []
    told = [(case.title, words) for case in cases if (words := left_out(case, sets, plan.least))]
    return [("", told[0][1])] if len(told) == len(cases) and len({words for _, words in told}) == 1 else told


def read_runs(plan: BlockPlan, case: BlockCase, size: Size, out: Path) -> Runs:
    """The stored runs of a case and a size, rows in the order of the plan."""
    found: dict[str, dict[int, Any]] = {}
    for row in plan.rows:
        files = sorted((out / "results" / case.name / f"{size}" / row.name).glob("draw-*.json"))
        records = sorted((read_json(file) for file in files), key=lambda one: int(one["draw"]))
        if records:
            found[row.name] = {int(one["draw"]): one for one in records}
    return found


def _of_size(plan: BlockPlan, size: Size, runs: Runs) -> dict[str, Any]:
    told = "All training images of each hospital" if size == "all" else f"{size} training images per hospital"
    if isinstance(size, str) and size != "all":
        told = f"{size.removesuffix('%')} % of each hospital's training images"
    if not runs:
        return {"title": told, "why": "Nothing has run yet.", "table": [], "tests": [], "missing": ""}
    whole = whole_draws(plan, runs)
    fewest, usual, most = images_held(runs)
    held = "" if isinstance(size, int) else f" A hospital has {usual} training images (median; {fewest} to {most})."
    try:
        table, tests = figure_table(plan, whole or runs), test_table(plan, whole or runs)
        against, paired = reference_table(plan, whole or runs), pair_table(plan, whole or runs)
    except StateError as error:
        return {"title": told, "why": f"Not shown: {error}", "table": [], "tests": [], "missing": ""}
    missing = [
        f"{row.title} ({several(plan.draws - len(whole.get(row.name, {})), 'draw')})"
        for row in plan.rows
        if len(whole.get(row.name, {})) < plan.draws
    ]
    return {
        "title": told,
        "why": "",
        "held": held,
        "table": table,
        "tests": tests,
        "against": against,
        "paired": paired,
        "missing": "; ".join(missing),
    }


def _tuned(plan: BlockPlan, out: Path) -> list[str]:
    lines = []
    for case in plan.cases:
        for row in plan.rows:
            file = out / "tuning" / case.name / f"{row.name}.json"
            if file.exists():
                lines += [f"{row.title}, {case.name}: {tuned_words(one)}" for one in read_json(file)["tried"]]
    return lines
