"""The runs of the plan within a call's budget: the telling ones first, each stored as it ends, others kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, as_completed
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from fedretina.child import pool
from fedretina.errors import FedretinaError, SettingsError, StoppedError
from fedretina.locks import folder_lock
from fedretina.loop import run_loop
from fedretina.storage import read_json, write_json
from fedretina_papers.choices import passes
from fedretina_papers.one_place_run import train_in_one_place
from fedretina_papers.one_run import machine, measure_run, run_name, sites_of
from fedretina_papers.paper_size.limits import Budget, Limits, Pace
from fedretina_papers.paper_size.plan import PaperSizePlan, Work
from fedretina_papers.paper_size.speed import SPEED, measure_speed
from fedretina_papers.runner import FIXED, Told, plan_record, required_alike, without_files

STATE_MB = 10_000
_SPENT = "spent.json"
_SLOWER = 1.5
"""A whole run against its training steps alone: validation, and what is written."""


class Ran(NamedTuple):
    """What became of a run in this call.

    Attributes:
        ended: Whether its result is stored now.
        words: What came out, or why it waits.
        fault: Why it cannot be; empty where it can.
        seconds: That it took in this call.
    """

    ended: bool
    words: str
    fault: str = ""
    seconds: float = 0.0


def run_paper_size(
    plan: PaperSizePlan,
    out: Path,
    jobs: int,
    limits: Limits,
    tell: Callable[[Told], None],
    read: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> dict[str, str]:
    """Measure speed, then do what runs are missing, until all are stored or the time is over.

    Args:
        plan: The plan; a folder that holds another plan's results is refused.
        out: Folder of the benchmark. It holds results, answers and the state of runs that have not ended, and may be
            taken to another machine whole.
        jobs: Runs at a time, each in a process of its own; 1 runs them in this one.
        limits: What the call may take.
        tell: Called after each run, and of what is left at the end.
        read: Called while the sites' images are read: as `sites_of`.

    Returns:
        Why runs cannot be, by "part, row, seed"; runs that wait for the next call are not among them.

    Raises:
        SettingsError: There is no site, or the folder belongs to another plan.
        StateError: The folder is in use, or cannot be written.
        DataError: A site's data cannot be used.
    """
    budget, works = Budget.of(limits), plan.works()
    if not works:
        raise SettingsError("no part has a site: name each with --site NAME=FILE, or phantoms with --phantoms.")
    cache = limits.cache_of(out)
    state_mb = STATE_MB if limits.state_mb is None else limits.state_mb
    with folder_lock(out, 0):
        _prepare(plan, out, cache, works, read)
        waiting = [work for work in works if not _result(plan, out, work).exists()]
        for name in dict.fromkeys(work.part for work in waiting):
            if budget.left > 0 and _speed_is_missing(out, name):
                data = sites_of(plan.benches[name], out / name, plan.seeds[0], cache=cache)
                try:
                    words = measure_speed(plan, name, data, out)
                except (FedretinaError, RuntimeError) as error:  # what was asked for is the runs
                    words = f"{name}: speed was not measured: {_fault(error)}"
                tell(Told(len(works) - len(waiting), len(works), words, None))
        missing: dict[str, str] = {}
        took: list[float] = []
        left = len(waiting)
        for work, ran in _each(plan, out, cache, waiting, jobs, budget, keeps=state_mb > 0):
            took += [ran.seconds] if ran.ended else []
            left -= ran.ended
            said = plan.named(work)
            if ran.fault:
                missing[said] = ran.fault
            if ran.words:
                seconds = fmean(took) * left / jobs if ran.ended else None
                tell(Told(len(works) - left, len(works), f"{said}: {ran.words}", seconds))
        for words in _trimmed(plan, out, state_mb):
            tell(Told(len(works) - left, len(works), words, None))
        if left > len(missing):
            next_ = next(
                work for work in waiting if not _result(plan, out, work).exists() and plan.named(work) not in missing
            )
            words = f"the time of this call is over; the next call goes on with {plan.named(next_)}"
            tell(Told(len(works) - left, len(works), words, None))
    return missing


def _prepare(
    plan: PaperSizePlan, out: Path, cache: Path, works: Sequence[Work], read: Callable[[str, int, int], None]
) -> None:
    """Build the image caches, whatever the time, since half of one is none; and note what is to be run."""
    for name in dict.fromkeys(work.part for work in works):
        bench = plan.benches[name]
        fixed = required_alike(bench, out / name)
        sites_of(bench, out / name, plan.seeds[0], read=read, cache=cache)
        write_json(out / name / FIXED, fixed)
        write_json(out / name / "plan.json", plan_record(bench, {}))
    write_json(out / "plan.json", without_files(plan.model_dump(mode="json", exclude={"sites"})))


def _each(
    plan: PaperSizePlan,
    out: Path,
    cache: Path,
    waiting: Sequence[Work],
    jobs: int,
    budget: Budget,
    keeps: bool,
) -> Iterator[tuple[Work, Ran]]:
    """Do each run, in this process or several at a time; after the time is over each only says that it waits."""
    settings = plan.model_dump(mode="json")
    if jobs == 1:
        yield from ((work, one_work(settings, out, cache, work, budget, keeps)) for work in waiting)
        return
    with pool(jobs) as workers:
        futures = {workers.submit(one_work, settings, out, cache, work, budget, keeps): work for work in waiting}
        try:
            for future in as_completed(futures):
                try:
                    ran = future.result()
                except BrokenExecutor:
                    said = "a process of the call was killed, for want of memory as a rule: lower --jobs."
                    ran = Ran(False, f"failed: {said}", said)
                yield futures[future], ran
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)
            raise


def one_work(settings: dict[str, Any], out: Path, cache: Path, work: Work, budget: Budget, keeps: bool) -> Ran:
    """Run one row with one seed, or go on with it, as far as the time allows; runs in a process of its own.

    Args:
        settings: The plan.
        out: Folder of the benchmark.
        cache: Folder of the image caches.
        work: The run.
        budget: When it must be done.
        keeps: Whether what is unfinished in the end is kept; where it is not, a run that would not end is not begun.
    """
    if budget.left <= 0:
        return Ran(False, "")
    try:
        return _run(PaperSizePlan.model_validate(settings), out, cache, work, budget, keeps)
    except StoppedError as stopped:
        return Ran(False, str(stopped).removesuffix("."))
    except (FedretinaError, RuntimeError) as error:  # torch's too: one row must not cost the time of the others
        said = _fault(error)
        return Ran(False, f"failed: {said}", said)


def _run(plan: PaperSizePlan, out: Path, cache: Path, work: Work, budget: Budget, keeps: bool) -> Ran:
    folder, bench = out / work.part, plan.benches[work.part]
    choice, experiment = bench.rows[work.row], plan.experiment_of(work)
    sites = sites_of(bench, folder, work.seed, cache=cache)
    trained = {site: sites[site] for site in bench.trained_on(choice)}
    seen = passes(experiment) * sum(data.counts["train"] for data in trained.values())
    known = _known(folder, experiment.network.encoder)
    at_once = choice.in_one_place  # nothing of such a run is kept before its end, and its rounds are no orders to sites
    if (at_once or not keeps) and known.pace is not None and known.pace * seen > budget.left:
        raise StoppedError(f"not begun: it takes about {known.pace * seen / 60:.0f} min, more than are left.")

    root, run = folder / "runs" / choice.name, run_name(experiment)
    before, began = _spent_before(root / run), budget.clock()
    pace = Pace(budget, 0.0 if at_once else known.longest, whole=at_once)
    try:
        if at_once:
            train_in_one_place(experiment, trained, root / run, pace)
        else:
            run_loop(experiment, trained, root, run, tell=pace)
    finally:
        took = budget.clock() - began
        whole = None if before is None else round(before + took, 1)
        if (root / run).exists():  # a run that could not begin leaves nothing
            write_json(root / run / _SPENT, {"seconds": whole, "open": False})
    write_json(root / run / "seconds.json", {"seconds": whole})
    record = measure_run(bench, choice, work.seed, {}, folder, root / run, trained, sites)
    record["title"] = plan.parts[work.part].title_of(bench, choice)
    record |= {"images_seen": seen, "longest_order": 0.0 if at_once else round(pace.longest, 2)}
    write_json(_result(plan, out, work), record)
    shutil.rmtree(root / run)  # results and answers are all that is asked for later, and a model is large
    aucs = [one["test"]["auc"] for one in record["sites"].values() if one["test"]["auc"] is not None]
    mean = f"{fmean(aucs):.3f}" if aucs else "undefined"
    return Ran(True, f"macro AUC {mean}, {whole} s", seconds=took)


def _fault(error: FedretinaError | RuntimeError) -> str:
    if isinstance(error, FedretinaError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "the memory of the device is full: lower --jobs."
    return f"{str(error).partition(chr(10))[0]}: a fault of the program or of the device."


def _spent_before(folder: Path) -> float | None:
    """Seconds that earlier calls gave a run; None where one of them was killed and could not say."""
    if not folder.exists():
        found: float | None = 0.0
    elif not (folder / _SPENT).exists() or read_json(folder / _SPENT)["open"]:
        found = None
    else:
        found = read_json(folder / _SPENT)["seconds"]
    if folder.exists():
        write_json(folder / _SPENT, {"seconds": found, "open": True})
    return found


class _Known(NamedTuple):
    """What is known of runs with an encoder: seconds for each image that training sees, and of the longest order."""

    pace: float | None
    longest: float


def _known(folder: Path, encoder: str) -> _Known:
    """What the runs that have ended tell of those that have not; before the first, speed alone tells something."""
    records = [read_json(path) for path in sorted((folder / "results").glob("*/seed-*.json"))]
    alike = [
        one
        for one in records
        if one["settings"]["network"]["encoder"] == encoder and one["seconds"] is not None and one["passes"] > 1
    ]
    if alike:
        return _Known(
            max(one["seconds"] / one["images_seen"] for one in alike), max(one["longest_order"] for one in alike)
        )
    file = folder / SPEED
    measured = read_json(file) if file.exists() else {}
    if measured.get("encoder") != encoder:
        return _Known(None, 0.0)
    return _Known(_SLOWER / fmean(measured["real"]), 0.0)


def _speed_is_missing(out: Path, part: str) -> bool:
    file = out / part / SPEED
    return not file.exists() or read_json(file)["machine"]["gpu"] != machine()["gpu"]


def _trimmed(plan: PaperSizePlan, out: Path, state_mb: int) -> Iterator[str]:
    """Drop unfinished runs beyond what may be left behind, those that come last in the plan first."""
    total = 0.0
    for work in plan.works():
        root = out / work.part / "runs" / plan.benches[work.part].rows[work.row].name
        folder = root / run_name(plan.experiment_of(work))
        if not folder.exists():
            continue
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
        if total + size > state_mb:
            shutil.rmtree(folder)
            yield f"{plan.named(work)} begins anew: its state of {size:.0f} MB is beyond --state-mb {state_mb}"
        else:
            total += size
            yield f"{plan.named(work)} is unfinished; its state of {size:.0f} MB is kept"


def _result(plan: PaperSizePlan, out: Path, work: Work) -> Path:
    return out / work.part / "results" / plan.benches[work.part].rows[work.row].name / f"seed-{work.seed}.json"
