"""The runs of the plan within a call's budget: the telling ones first, each stored as it ends, others kept."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from fedretina.data.manifest import PRETRAIN
from fedretina.data.site_data import SiteData, pools
from fedretina.errors import FedretinaError, SettingsError, StoppedError
from fedretina.locks import folder_lock
from fedretina.loop import run_loop
from fedretina.settings.experiment import Experiment
from fedretina.storage import read_json, write_json
from fedretina_papers.choices import RowChoice, passes, passes_at_once
from fedretina_papers.markdown import listed
from fedretina_papers.one_place_run import train_in_one_place
from fedretina_papers.one_run import machine, measure_run, run_name, sites_of
from fedretina_papers.paper_size.limits import Budget, Expected, Limits, Pace
from fedretina_papers.paper_size.plan import PaperSizePlan, Work
from fedretina_papers.paper_size.speed import SPEED, measure_speed
from fedretina_papers.processes import ended, pool
from fedretina_papers.runner import FIXED, Told, plan_record, required_alike, without_files

STATE_MB = 10_000
_SPENT = "spent.json"
_TRAINED = "seconds.json"
"""In a run's folder once nothing of it is left to train."""
_SLOWER = 1.5
"""A whole run against its training steps alone: validation, and what is written."""


class Call(NamedTuple):
    """What is the same for all runs of a call.

    Attributes:
        out: Folder of the benchmark.
        cache: Folder of the image caches.
        budget: When it must be done.
        jobs: Runs at a time.
        keeps: Whether what is unfinished in the end is kept; where it is not, a run that would not end is not begun.
    """

    out: Path
    cache: Path
    budget: Budget
    jobs: int
    keeps: bool


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
    """Build image caches, measure speed, then do what runs are missing, until all are stored or the time is over.

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
        StateError: The folder is in use, or cannot be written, or a process of several ended abruptly.
        DataError: A site's data cannot be used.
    """
    budget, works = Budget.of(limits), plan.works()
    if not works:
        raise SettingsError("no part has a site: name each with --site NAME=FILE, or phantoms with --phantoms.")
    state_mb = STATE_MB if limits.state_mb is None else limits.state_mb
    call = Call(out, limits.cache_of(out), budget, jobs, state_mb > 0)
    with folder_lock(out, 0):
        try:
            _prepare(plan, call, works, read)
        except StoppedError as stopped:
            stored = sum(_result(plan, out, work).exists() for work in works)
            tell(Told(stored, len(works), str(stopped).removesuffix("."), None))
            return {}
        waiting = [work for work in works if not _result(plan, out, work).exists()]
        for name in dict.fromkeys(work.part for work in waiting):
            if budget.left > budget.unknown and _speed_is_missing(out, name):
                data = sites_of(plan.benches[name], out / name, plan.seeds[0], cache=call.cache)
                try:
                    words = measure_speed(plan, name, data, out)
                except (FedretinaError, RuntimeError) as error:  # what was asked for is the runs
                    words = f"{name}: speed was not measured: {_fault(error)}"
                tell(Told(len(works) - len(waiting), len(works), words, None))
        missing: dict[str, str] = {}
        took: list[float] = []
        left = len(waiting)
        for work, ran in _each(plan, call, waiting):
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


def _prepare(plan: PaperSizePlan, call: Call, works: Sequence[Work], read: Callable[[str, int, int], None]) -> None:
    """Note what is to be run, and build the image caches, site by site.

    Raises:
        StoppedError: The time is over; what lies in a cache is kept.
    """
    parts = list(dict.fromkeys(work.part for work in works))
    for name in parts:
        folder, bench = call.out / name, plan.benches[name]
        write_json(folder / FIXED, required_alike(bench, folder))
        write_json(folder / "plan.json", plan_record(bench, {}))
    write_json(call.out / "plan.json", without_files(plan.model_dump(mode="json", exclude={"sites"})))

    def within(what: str, done: int, of: int) -> None:
        read(what, done, of)
        if done < of and call.budget.left <= 0:
            raise StoppedError(f"{done} of {of} {what} are cached")

    homes = [(name, site) for name in parts for site in sorted(plan.benches[name].sites)]
    for at, (name, site) in enumerate(homes):
        try:
            sites_of(plan.benches[name], call.out / name, plan.seeds[0], [site], within, call.cache)
        except StoppedError as stopped:
            left = listed(list(dict.fromkeys(site for _, site in homes[at:])))
            raise StoppedError(
                f"the time of this call is over: {stopped}; the next call goes on with the image caches of {left}, and "
                "no run begins before they are whole."
            ) from stopped


def _each(plan: PaperSizePlan, call: Call, waiting: Sequence[Work]) -> Iterator[tuple[Work, Ran]]:
    """Do each run, in this process or several at a time; after the time is over each only says that it waits."""
    settings = plan.model_dump(mode="json")
    if call.jobs == 1:
        yield from ((work, one_work(settings, call, work)) for work in waiting)
        return
    with pool(call.jobs) as workers:
        calls = [(work, partial(one_work, settings, call, work)) for work in waiting]
        for work, future in ended(workers, call.jobs, calls):
            yield work, future.result()


def one_work(settings: dict[str, Any], call: Call, work: Work) -> Ran:
    """Run one row with one seed, or go on with it, as far as the time allows; runs in a process of its own.

    Args:
        settings: The plan.
        call: What is the same for all runs.
        work: The run.
    """
    if call.budget.left <= 0:
        return Ran(False, "")
    try:
        return _run(PaperSizePlan.model_validate(settings), call, work)
    except StoppedError as stopped:
        return Ran(False, str(stopped).removesuffix("."))
    except (FedretinaError, RuntimeError) as error:  # torch's too: one row must not cost the time of the others
        said = _fault(error)
        return Ran(False, f"failed: {said}", said)
    finally:
        gc.collect()  # networks refer to themselves: run by run they would fill the memory, and the card's


def _run(plan: PaperSizePlan, call: Call, work: Work) -> Ran:
    out, budget = call.out / work.part, call.budget
    bench, began = plan.benches[work.part], call.budget.clock()
    choice, experiment = bench.rows[work.row], plan.experiment_of(work)
    sites = sites_of(bench, out, work.seed, cache=call.cache)
    trained = {site: sites[site] for site in bench.trained_on(choice)}
    seen = passes(experiment) * sum(data.counts["train"] for data in trained.values())
    known = _known(out, experiment.network.encoder, call)
    if not call.keeps and known.pace is not None and known.pace * seen > budget.left:
        raise StoppedError(f"not begun: it takes about {known.pace * seen / 60:.0f} min, more than are left.")

    folder = out / "runs" / choice.name / run_name(experiment)
    if not (folder / _TRAINED).exists():
        _train(choice, experiment, trained, folder, budget, known)
    asked = sum(data.counts[split] for data in sites.values() for split in ("val", "test"))
    # Answering is no slower than training is. Half a call is enough to begin, or it might never.
    if call.keeps and budget.left < min(known.step * asked, budget.whole / 2):
        raise StoppedError("it has trained; the next call asks its models.")
    spent = read_json(folder / _TRAINED)
    record = measure_run(bench, choice, work.seed, {}, out, folder, trained, sites)
    record["title"] = plan.parts[work.part].title_of(bench, choice)
    # Killed right after its end, a run in one place has not said it.
    longest = {name: spent.get(name, 0.0) for name in ("longest_order", "images_of_it")}
    record |= {"images_seen": seen, **longest}
    write_json(_result(plan, call.out, work), record)
    shutil.rmtree(folder)  # results and answers are all that is asked for later, and a model is large
    aucs = [one["test"]["auc"] for one in record["sites"].values() if one["test"]["auc"] is not None]
    mean = f"{fmean(aucs):.3f}" if aucs else "undefined"
    return Ran(True, f"macro AUC {mean}, {spent['seconds']} s", seconds=budget.clock() - began)


def _train(
    choice: RowChoice,
    experiment: Experiment,
    trained: Mapping[str, SiteData],
    folder: Path,
    budget: Budget,
    known: _Known,
) -> None:
    """Train a run to its end, or as far as the time allows."""
    whole = experiment.pooled or choice.in_one_place  # then there is one order a round, or one for each kind of grades
    images = [max(data.counts["train"], data.counts[PRETRAIN]) for data in trained.values()]
    orders, looks = [sum(images)] if whole else images, passes_at_once(experiment)
    before, began = _spent_before(folder), budget.clock()
    hosts = len(pools(trained, experiment.supervised)) if experiment.pooled else len(orders)
    pace = Pace(budget, known.expected(looks, orders), hosts, before.longest)
    try:
        if choice.in_one_place:
            train_in_one_place(experiment, trained, folder, pace)
        else:
            run_loop(experiment, trained, folder.parent, folder.name, tell=pace)
    finally:
        took = budget.clock() - began
        spent = None if before.seconds is None else round(before.seconds + took, 1)
        if folder.exists():  # a run that could not begin leaves nothing
            write_json(folder / _SPENT, {"seconds": spent, "longest": pace.longest, "open": False})
    # A round in one place is no order to a site, and tells nothing of one.
    longest = 0.0 if choice.in_one_place else round(pace.longest, 2)
    write_json(
        folder / _TRAINED, {"seconds": spent, "longest_order": longest, "images_of_it": round(looks * max(orders))}
    )


def _fault(error: FedretinaError | RuntimeError) -> str:
    if isinstance(error, FedretinaError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "the memory of the device is full: lower --jobs."
    return f"{str(error).partition(chr(10))[0]}: a fault of the program or of the device."


class _Spent(NamedTuple):
    """What earlier calls gave a run.

    Attributes:
        seconds: In all; None where one of them was killed and could not say.
        longest: Seconds of its longest order.
    """

    seconds: float | None = 0.0
    longest: float = 0.0


def _spent_before(folder: Path) -> _Spent:
    """What earlier calls gave a run; from now on the folder says that one is at it."""
    if not folder.exists():
        return _Spent()
    held = read_json(folder / _SPENT) if (folder / _SPENT).exists() else {"open": True, "longest": 0.0}
    found = _Spent(None if held["open"] else held["seconds"], held.get("longest", 0.0))
    write_json(folder / _SPENT, {**found._asdict(), "open": True})
    return found


class _Known(NamedTuple):
    """What is known of runs with an encoder.

    Attributes:
        pace: Seconds for each image that training sees, with all that a run does beside; None where nothing is known.
        step: Seconds for each image that training sees, without it, beside as many other runs; 0 where nobody measured.
        orders: The longest order of each run that has ended: its seconds, and how many images training saw in it.
        unknown: Seconds that an order takes at least of which nothing is known.
    """

    pace: float | None
    step: float
    orders: Sequence[tuple[float, float]]
    unknown: float

    def expected(self, looks: float, images: Sequence[int]) -> Expected:
        """What a run is expected to take.

        Args:
            looks: How often an order makes a site look at each image, at most.
            images: Images of each order of a round.
        """
        most, all_ = looks * max(images), looks * sum(images)
        if not self.orders:
            return Expected(max(self.unknown, self.step * most), max(self.unknown, self.step * all_))
        order = max(seconds * max(1.0, most / seen) for seconds, seen in self.orders)
        return Expected(order, order * all_ / most)


def _known(folder: Path, encoder: str, call: Call) -> _Known:
    """What the runs that have ended tell of those that have not; before the first, speed alone tells something.

    For a first order an encoder is taken to be as fast as the part's reference, beside as many others as run at a time.
    """
    records = [read_json(path) for path in sorted((folder / "results").glob("*/seed-*.json"))]
    alike = [
        one
        for one in records
        if one["settings"]["network"]["encoder"] == encoder and one["seconds"] is not None and one["passes"] > 1
    ]
    speed = read_json(folder / SPEED) if (folder / SPEED).exists() else None
    step = 0.0 if speed is None else _SLOWER / fmean(speed["real"])
    pace = max((one["seconds"] / one["images_seen"] for one in alike), default=None)
    if pace is None and speed is not None and speed["encoder"] == encoder:
        pace = step
    orders = [(one["longest_order"], one["images_of_it"]) for one in alike if one.get("images_of_it")]
    return _Known(pace, step * call.jobs, orders, call.budget.unknown)


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
        if _result(plan, out, work).exists():  # killed between the result and this
            shutil.rmtree(folder)
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
