"""The study of blocks: draws with their controls, behind encoders that are pre-trained first where rows ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedretina.errors import SettingsError
from fedretina.settings.plan import merged
from fedretina_papers.blocks.page import write_block_page
from fedretina_papers.blocks.plan import BlockPlan
from fedretina_papers.blocks.study import PLAN, require_alike, run_block
from fedretina_papers.first_phase import run_first_phase
from fedretina_papers.first_phase_plan import FirstPhasePlan
from fedretina_papers.kinds import Kind, Prepared, Read, Tell, no_cases, nothing_compared, register, without_pictures
from fedretina_papers.paper_size.limits import Limits
from fedretina_papers.plan import preset
from fedretina_papers.pretraining import given_encoders

_FIRST = "first_phase"
_UNTIL_DONE = 10_000


def _block(settings: Mapping[str, Any], limits: Limits) -> Prepared:
    plan = BlockPlan.read(settings)
    limits.require_none(plan.name)

    def run(out: Path, jobs: int, tell: Tell, read: Read) -> dict[str, str]:
        if plan.encoders or not plan.stood_on:
            return run_block(plan, out, jobs, tell, read)
        require_alike(plan, out)
        if (out / PLAN).exists() and not (out / _FIRST).exists():
            raise SettingsError(f"the runs in {out.name} stand on encoders that were given: give --encoders again.")
        run_first_phase(_before(plan), out / _FIRST, jobs, tell, read)
        found = given_encoders(out / _FIRST)
        mine = {name: one for name, one in found.items() if name in plan.stood_on}
        return run_block(plan.on(mine), out, jobs, tell, read)

    return Prepared(run, nothing_compared, no_cases)


def _before(plan: BlockPlan) -> FirstPhasePlan:
    """The pre-training of the encoders that a block's rows stand on.

    Raises:
        SettingsError: The block's plan says of none, or not of all of them.
    """
    if "preset" not in plan.first:
        raise SettingsError(
            f"rows of {plan.name} stand on pre-trained encoders: give the folder of their pre-training as --encoders, "
            "or name a preset for it in the plan's first."
        )
    laid_over = {name: value for name, value in plan.first.items() if name != "preset"}
    whole = merged(preset(str(plan.first["preset"])), laid_over)
    named, names = {one["name"]: one for one in whole["encoders"]}, set(plan.stood_on)
    if lacking := sorted(names - set(named)):
        raise SettingsError(f"{plan.first['preset']} pre-trains no encoder {', '.join(lacking)}: name it in first.")
    while before := {after for name in names if (after := named[name].get("after")) in named} - names:
        names |= before
    wanted = [one for name, one in named.items() if name in names]
    return FirstPhasePlan.read({**whole, "sites": plan.sites, "encoders": wanted, "minutes": _UNTIL_DONE})


register("block", Kind(_block, without_pictures(write_block_page), unfinished=(_FIRST,)), __file__)
