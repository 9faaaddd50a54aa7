"""The study that pre-trains encoders without labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedretina_papers.first_phase import run_first_phase, write_first_phase_page
from fedretina_papers.first_phase_plan import FirstPhasePlan
from fedretina_papers.kinds import Kind, Prepared, no_cases, nothing_compared, register, without_pictures
from fedretina_papers.paper_size.limits import Limits


def _first_phase(settings: Mapping[str, Any], limits: Limits) -> Prepared:
    plan = FirstPhasePlan.read(settings)
    limits.require_none(plan.name)
    return Prepared(
        lambda out, jobs, tell, read: run_first_phase(plan, out, jobs, tell, read), nothing_compared, no_cases
    )


register(
    "first_phase",
    Kind(_first_phase, without_pictures(write_first_phase_page), unrun=True, unfinished=("cache", "pretraining")),
    __file__,
)
