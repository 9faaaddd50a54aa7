"""The study at the papers' size, for a machine with a GPU that is lent for minutes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedretina_papers.kinds import Kind, Prepared, no_cases, register, without_pictures
from fedretina_papers.paper_size.limits import Limits
from fedretina_papers.paper_size.page import compare_parts, write_paper_size_page
from fedretina_papers.paper_size.plan import PaperSizePlan
from fedretina_papers.paper_size.run import run_paper_size


def _paper_size(settings: Mapping[str, Any], limits: Limits) -> Prepared:
    plan = PaperSizePlan.read(settings)

    def compare(out: Path) -> None:
        if limits.minutes is None:  # else the time belongs to what trains, and --render compares later, anywhere
            compare_parts(plan, out)

    return Prepared(
        lambda out, jobs, tell, read: run_paper_size(plan, out, jobs, limits, tell, read),
        compare,
        no_cases,
    )


register(
    "paper_size", Kind(_paper_size, without_pictures(write_paper_size_page), unrun=True, unfinished=("runs",)), __file__
)
