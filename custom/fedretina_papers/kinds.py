"""What a benchmark's `paper` decides: how its plan is read and run, and which page its results make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedretina.errors import SettingsError
from fedretina.settings.plan import merged
from fedretina_papers.blocks.page import write_block_page
from fedretina_papers.blocks.plan import BlockPlan
from fedretina_papers.blocks.study import PLAN, require_alike, run_block
from fedretina_papers.cases import write_cases
from fedretina_papers.compared import statistics
from fedretina_papers.fedee_page import write_fedee_page
from fedretina_papers.first_phase import run_first_phase, write_first_phase_page
from fedretina_papers.first_phase_plan import FirstPhasePlan
from fedretina_papers.gpu.page import write_gpu_page
from fedretina_papers.gpu.plan import GpuPlan
from fedretina_papers.gpu.run import run_gpu
from fedretina_papers.oct_page import write_oct_page
from fedretina_papers.one_run import sites_of
from fedretina_papers.page import write_benchmark_page
from fedretina_papers.paper_size.limits import Limits
from fedretina_papers.paper_size.page import compare_parts, write_paper_size_page
from fedretina_papers.paper_size.plan import PaperSizePlan
from fedretina_papers.paper_size.run import run_paper_size
from fedretina_papers.plan import BenchmarkPlan, preset
from fedretina_papers.pretraining import given_encoders
from fedretina_papers.runner import Told, run_benchmark

_FIRST = "first_phase"
_UNTIL_DONE = 10_000
Tell = Callable[[Told], None]
Read = Callable[[str, int, int], None]


class Prepared(NamedTuple):
    """A benchmark whose plan was checked.

    Attributes:
        run: Runs what is missing; takes the folder, runs at a time, whom to tell of runs and whom of images that are
            read, and gives why runs are missing.
        compare: Compares what was answered in the folder, where the answers are there.
        cases: Writes single cases for the eyes at this machine; takes the folder and the page, says whether there were.
    """

    run: Callable[[Path, int, Tell, Read], dict[str, str]]
    compare: Callable[[Path], None]
    cases: Callable[[Path, Path], bool]


class Kind(NamedTuple):
    """A kind of benchmark.

    Attributes:
        prepare: Checks a plan's settings, and what is asked of the call.
        render: Writes the page: the benchmark's folder, the page, the folder of its pictures.
        unrun: Whether there is a page before anything has run.
        unfinished: Names of folders that hold no results, such as those of runs that have not ended, and of caches.
    """

    prepare: Callable[[Mapping[str, Any], Limits], Prepared]
    render: Callable[[Path, Path, Path], None]
    unrun: bool = False
    unfinished: tuple[str, ...] = ()


def kind_of(settings: Mapping[str, Any]) -> Kind:
    """The kind that a plan's settings ask for.

    Raises:
        SettingsError: There is no such kind.
    """
    paper = str(settings.get("paper", "feduaa"))
    if paper not in KINDS:
        raise SettingsError(f"paper is {paper!r}: a benchmark's page is one of {', '.join(KINDS)}.")
    return KINDS[paper]


def _rows(settings: Mapping[str, Any], limits: Limits) -> Prepared:
    plan = BenchmarkPlan.read(settings)
    limits.require_none(plan.name)

    def cases(out: Path, page: Path) -> bool:
        # A folder of results alone has none.
        return (out / "answers").exists() and write_cases(plan, sites_of(plan, out, plan.seeds[0]), out, page)

    return Prepared(lambda out, jobs, tell, read: run_benchmark(plan, out, jobs, tell, read), _compare, cases)


def _paper_size(settings: Mapping[str, Any], limits: Limits) -> Prepared:
    plan = PaperSizePlan.read(settings)

    def compare(out: Path) -> None:
        if limits.minutes is None:  # else the time belongs to what trains, and --render compares later, anywhere
            compare_parts(plan, out)

    return Prepared(
        lambda out, jobs, tell, read: run_paper_size(plan, out, jobs, limits, tell, read),
        compare,
        lambda out, page: False,
    )


def _gpu(settings: Mapping[str, Any], limits: Limits) -> Prepared:
    plan = GpuPlan.read(settings)
    if limits.state_mb is not None:
        raise SettingsError("gpu leaves nothing unfinished, so nothing reads --state-mb: leave it out.")
    return Prepared(
        lambda out, jobs, tell, read: run_gpu(plan, out, jobs, limits, tell), lambda out: None, lambda out, page: False
    )


def _first_phase(settings: Mapping[str, Any], limits: Limits) -> Prepared:
    plan = FirstPhasePlan.read(settings)
    limits.require_none(plan.name)
    return Prepared(
        lambda out, jobs, tell, read: run_first_phase(plan, out, tell, read), _compare, lambda out, page: False
    )


def _compare(out: Path) -> None:
    if (out / "answers").exists():  # a folder of results alone brings its statistics along
        statistics(out)


def _block(settings: Mapping[str, Any], limits: Limits) -> Prepared:
    plan = BlockPlan.read(settings)
    limits.require_none(plan.name)

    def run(out: Path, jobs: int, tell: Tell, read: Read) -> dict[str, str]:
        if plan.encoders or not plan.stood_on:
            return run_block(plan, out, jobs, tell, read)
        require_alike(plan, out)
        if (out / PLAN).exists() and not (out / _FIRST).exists():
            raise SettingsError(f"the runs in {out.name} stand on encoders that were given: give --encoders again.")
        run_first_phase(_before(plan), out / _FIRST, tell, read)
        return run_block(plan.on(given_encoders(out / _FIRST)), out, jobs, tell, read)

    return Prepared(run, _compare, lambda out, page: False)


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
    wanted = [one for one in whole["encoders"] if one["name"] in plan.stood_on]
    if lacking := sorted(plan.stood_on - {one["name"] for one in wanted}):
        raise SettingsError(f"{plan.first['preset']} pre-trains no encoder {', '.join(lacking)}: name it in first.")
    return FirstPhasePlan.read({**whole, "sites": plan.sites, "encoders": wanted, "minutes": _UNTIL_DONE})


def _without_pictures(write: Callable[[Path, Path], None]) -> Callable[[Path, Path, Path], None]:
    return lambda out, page, pictures: write(out, page)


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "feduaa": Kind(_rows, write_benchmark_page),
        "oct": Kind(_rows, write_oct_page),
        "fedee": Kind(_rows, write_fedee_page),
        "first_phase": Kind(
            _first_phase,
            _without_pictures(write_first_phase_page),
            unrun=True,
            unfinished=("cache", "pretraining"),
        ),
        "paper_size": Kind(_paper_size, _without_pictures(write_paper_size_page), unrun=True, unfinished=("runs",)),
        "gpu": Kind(_gpu, _without_pictures(write_gpu_page), unrun=True),
        "block": Kind(_block, _without_pictures(write_block_page), unfinished=(_FIRST,)),
    }
)
