"""A study of rows times seeds: a plan, a function that lists its columns, and a template."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedretina.storage import read_json
from fedretina_papers.cases import write_cases
from fedretina_papers.compared import STATISTICS, statistics
from fedretina_papers.engine.page import write_page
from fedretina_papers.engine.records import Records
from fedretina_papers.kinds import ALIKE, Compares, Kind, Prepared, Render, packaged, register
from fedretina_papers.one_run import sites_of
from fedretina_papers.paper_size.limits import Limits
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.runner import run_benchmark
from fedretina_papers.stored import Benchmark, Record, read_benchmark
from fedretina_papers.what_was_run import warnings, what_was_run

Values = Callable[[Benchmark, Records, Record | None], Mapping[str, Any]]
"""What a study's template shows, by name: of the runs, their records, and the statistics where they are computed."""


def study(name: str) -> Callable[[Values], Values]:
    """Register the function below as the study that a plan's `paper` names.

    Its page is the template NAME.md.j2, beside the function's own file or in `pages/`. It shows what the function
    gives, the `plan`, and `ran`: warnings, sites, seeds, settings and machine.

    Args:
        name: In the plan, and of the template.

    Raises:
        SettingsError: There is another study of that name.
    """

    def registered(values: Values) -> Values:
        home = Path(inspect.getfile(values))

        def render(out: Path, page: Path, _pictures: Path) -> None:
            benchmark = read_benchmark(out)
            found = read_json(out / STATISTICS) if (out / STATISTICS).exists() else None
            ran = [*warnings(benchmark, found), *what_was_run(benchmark, found)]
            shown = values(benchmark, Records(benchmark.runs, benchmark.sites), found)
            write_page(f"{name}.md.j2", page, home.parent, plan=benchmark.plan, ran=ran, **shown)

        packaged()
        register(name, of_rows(render), str(home.resolve()))
        return values

    return registered


def of_rows(render: Render, compares: Compares = ALIKE) -> Kind:
    """The kind of a study of rows times seeds with a page of its own.

    Args:
        render: Writes the page.
        compares: What its comparison differs by.
    """

    def prepare(settings: Mapping[str, Any], limits: Limits) -> Prepared:
        plan = BenchmarkPlan.read(settings)
        limits.require_none(plan.name)

        def cases(out: Path, page: Path) -> bool:
            # A folder of results alone has none.
            return (out / "answers").exists() and write_cases(plan, sites_of(plan, out, plan.seeds[0]), out, page)

        return Prepared(lambda out, jobs, tell, read: run_benchmark(plan, out, jobs, tell, read), compare, cases)

    return Kind(prepare, render, compares=compares)


def compare(out: Path) -> None:
    """Compare what was answered in a folder; one of results alone brings its statistics along."""
    if (out / "answers").exists():
        statistics(out)
