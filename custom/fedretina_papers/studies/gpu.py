"""The study of what a card is used for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedretina.errors import SettingsError
from fedretina_papers.gpu.page import write_gpu_page
from fedretina_papers.gpu.plan import GpuPlan
from fedretina_papers.gpu.run import run_gpu
from fedretina_papers.kinds import Kind, Prepared, no_cases, nothing_compared, register, without_pictures
from fedretina_papers.paper_size.limits import Limits


def _gpu(settings: Mapping[str, Any], limits: Limits) -> Prepared:
    plan = GpuPlan.read(settings)
    if limits.state_mb is not None:
        raise SettingsError("gpu leaves nothing unfinished, so nothing reads --state-mb: leave it out.")
    return Prepared(lambda out, jobs, tell, read: run_gpu(plan, out, jobs, limits, tell), nothing_compared, no_cases)


register("gpu", Kind(_gpu, without_pictures(write_gpu_page), unrun=True), __file__)
