"""All runs of a plan, several at a time, each stored as it ends: a benchmark may be stopped and taken up again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedretina.errors import DivergedError, FedretinaError, SettingsError
from fedretina.evaluation.model_selection import candidates, chosen_step
from fedretina.locks import folder_lock
from fedretina.settings.aggregation import ChoiceSettings
from fedretina.storage import read_json, write_json
from fedretina_papers.choices import role_of
from fedretina_papers.fedee_costs import measure_side_by_side
from fedretina_papers.fine_tuned import begins_with
from fedretina_papers.measured_costs import measure_costs
from fedretina_papers.one_run import sites_of, store, train
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.processes import ended, pool
from fedretina_papers.readings import derive_readings
from fedretina_papers.tuning import Search

FIXED = "fixed.json"
_BESIDE = {
    *("spare_sites", "sets", "strangers", "costs", "target", "paper"),
    *("readings", "others", "metric", "unit", "level", "alpha", "printed", "energy"),
}
"""What no result depends on, or only the results of rows that name it."""


class Told(NamedTuple):
    """What is said after each run.

    Attributes:
        done: Runs that are stored, those of earlier calls among them.
        total: All runs of this stage.
        words: What ran and what came out.
        seconds_left: Estimate from the runs of this call; None before the first.
    """

    done: int
    total: int
    words: str
    seconds_left: float | None


class Work(NamedTuple):
    """A run in a worker: row by number, seed, and what was chosen, or is tried, of the row's grid."""

    row: int
    seed: int
    change: Mapping[str, Any]


def run_benchmark(
    plan: BenchmarkPlan,
    out: Path,
    jobs: int,
    tell: Callable[[Told], None],
    read: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> dict[str, str]:
    """Tune each row, run rows times seeds, and store every result with where it came from.

    Args:
        plan: The plan; a folder that holds another plan's results is refused.
        out: Folder of the benchmark.
        jobs: Runs at a time, each in a process of its own.
        tell: Called after each run.
        read: Called while the sites' images are read: as `sites_of`.

    Returns:
        Why runs are missing, by "row, seed"; empty when all are stored.

    Raises:
        SettingsError: The folder belongs to another plan.
        StateError: The folder is in use, or cannot be written, or a process of several ended abruptly.
        DataError: A site's data cannot be used.
    """
    with folder_lock(out, 0):
        fixed = required_alike(plan, out)
        sites_of(plan, out, plan.seeds[0], read=read)  # builds the image caches once, before processes share them
        # Not before: a plan whose sites cannot be read has left nothing that another plan could spoil.
        write_json(out / FIXED, fixed)
        missing: dict[str, str] = {}
        tuned = _tune(plan, out, jobs, tell, missing)
        works = [
            Work(number, seed, tuned[choice.name])
            for seed in sorted({seed for choice in plan.rows for seed in plan.seeds_of(choice)}, key=_first(plan))
            for number, choice in enumerate(plan.rows)
            if choice.name in tuned and seed in plan.seeds_of(choice)
        ]
        waiting = [work for work in works if not _result(plan, out, work).exists()]
        later = [work for work in waiting if begins_with(plan, plan.rows[work.row]) is not None]
        for stage in ([work for work in waiting if work not in later], later):
            total = len(works) - (len(later) if stage is not later else 0)
            for told in each_run(plan, out, stage, jobs, total, _stored, missing):
                tell(told)
        missing |= derive_readings(plan, out, lambda at, of, said: tell(Told(at, of, said, None)))
        if plan.costs:
            measure_costs(plan, out, lambda at, of, said: tell(Told(at, of, said, None)))
            if plan.compares.side_by_side:
                measure_side_by_side(plan, out, lambda at, of, said: tell(Told(at, of, said, None)))
        return missing


def _first(plan: BenchmarkPlan) -> Callable[[int], tuple[int, int]]:
    """The plan's seeds in their order, then those of single rows."""
    return lambda seed: (plan.seeds.index(seed) if seed in plan.seeds else len(plan.seeds), seed)


def required_alike(plan: BenchmarkPlan, out: Path) -> dict[str, Any]:
    """What a result depends on: rows and seeds may be added later, this may not change once a run has begun."""
    told = plan.model_dump(mode="json", exclude={"rows", "seeds", "sites", "reference", "beside", *_BESIDE})
    return settings_alike(told | {"sites": sorted(plan.sites)}, out)


def settings_alike(told: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """What a folder's results depend on, as it was when the first of them was begun.

    Args:
        told: What they would depend on now.
        out: The folder; `FIXED` in it holds what it was begun with.

    Raises:
        SettingsError: The folder holds results that depend on something else.
    """
    told = dict(without_files(told))
    held = without_files(read_json(out / FIXED)) if (out / FIXED).exists() and begun(out) else told
    other = sorted(key for key in {*held, *told} if held.get(key) != told.get(key))
    if other:
        raise SettingsError(
            f"the folder {out.name} holds runs that were begun with other settings ({', '.join(other)}): "
            "give this plan another folder."
        )
    return told


def without_files(words: Any) -> Any:
    """A plan's words without where this machine keeps a file of weights; their SHA-256 says which they are."""
    if isinstance(words, Mapping):
        return {name: without_files(one) for name, one in words.items() if not (name == "file" and "sha256" in words)}
    return [without_files(one) for one in words] if isinstance(words, list) else words


def begun(out: Path) -> bool:
    """Whether a benchmark's folder holds anything of a run, whole or not."""
    return any(
        (out / name).is_dir() and any((out / name).iterdir()) for name in ("runs", "tuning", "results", "pretraining")
    )


def _tune(
    plan: BenchmarkPlan, out: Path, jobs: int, tell: Callable[[Told], None], missing: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """What each row runs with; a row of which no run came to its end is left out."""
    after = {choice.name: start.name for choice in plan.rows if (start := begins_with(plan, choice)) is not None}
    searches = {row: Search(plan.grid_of(choice)) for row, choice in enumerate(plan.rows) if choice.name not in after}
    while asked := {row: asks for row, search in searches.items() if (asks := search.asks)}:
        works = [Work(row, plan.tuning_seed, change) for row, asks in asked.items() for change in asks]
        waiting = [work for work in works if not _tuning(plan, out, work).exists()]
        for told in each_run(plan, out, waiting, jobs, len(works), _tried, missing):
            tell(told)
        for row, asks in asked.items():
            files = [_tuning(plan, out, Work(row, plan.tuning_seed, change)) for change in asks]
            if all(file.exists() for file in files):
                searches[row].learn([read_json(file)["validation_auc"] for file in files])
            else:
                del searches[row]  # `missing` says why; what a fault cut off is tried again by the next call
    chosen = {plan.rows[row].name: search.change for row, search in searches.items()}
    tuning = {plan.rows[row].name: search.record for row, search in searches.items() if search.tried}
    # A row that fine-tunes what another ends with has what was chosen for the other.
    chosen |= {name: chosen[other] for name, other in after.items() if other in chosen}
    write_json(out / "plan.json", plan_record(plan, tuning))
    return chosen


def validation_auc(results: Mapping[str, Any], choice: ChoiceSettings) -> float | None:
    """Mean validation AUC of the round that a run ends with; None where no site could measure it.

    Args:
        results: A run's `results.json`.
        choice: How its round is chosen, and over how many rounds the mean is taken.
    """
    steps = results["steps"]
    training = [number for number, step in enumerate(steps) if step["task"] == "train"]
    span = range(training[0], training[-1] + 1)
    chosen = chosen_step(steps, span, choice)
    if chosen is None:
        return None
    means = [c.mean for c in candidates(steps, span) if chosen - choice.window < c.step <= chosen]
    return fmean(means) if means else None


def plan_record(plan: BenchmarkPlan, tuning: Mapping[str, Any]) -> dict[str, Any]:
    """What a benchmark's folder says of its plan, and of how each row was tuned."""
    told_plan = plan.model_dump(mode="json", exclude={"sites", "rows", "spare_sites", "strangers"})
    rows = [*(choice.name for choice in plan.rows), *(one.name for one in plan.readings)]
    kind = told_plan["splits"]["kind"]
    told_plan = without_files(told_plan)
    stored = {**told_plan, "rows": rows, "sites": sorted(plan.sites), "splits": kind, "tuning": tuning}
    named = {"spare_sites": sorted(plan.spare_sites), "strangers": sorted(plan.strangers)}
    settings = {"settings": told_plan["experiment"], "split": told_plan["splits"]}
    # Rows with seeds of their own, so that no page asks them for the plan's.
    of_rows = {choice.name: list(choice.seeds) for choice in plan.rows if choice.seeds}
    of_readings = {one.name: list(one.trials(plan.seeds_of(plan.choice(one.of)))) for one in plan.readings}
    roles: dict[str, str] = {
        choice.name: role_of(choice, plan.experiment_of(choice, plan.seeds_of(choice)[0], {})) for choice in plan.rows
    }
    roles |= {one.name: "alone" if one.reading == "majority" else roles[one.of] for one in plan.readings}
    apart = {choice.name: choice.of for choice in plan.rows if choice.apart}
    return {**stored, **named, **settings, "seeds_of": {**of_rows, **of_readings}, "roles": roles, "apart": apart}


def each_run(
    plan: BenchmarkPlan,
    out: Path,
    waiting: Iterable[Work],
    jobs: int,
    total: int,
    do: Callable[[dict[str, Any], Path, Work], str],
    missing: dict[str, str],
) -> Iterator[Told]:
    """Do each work, several at a time in processes of their own, and say so as it ends.

    One at a time they run in this process: a start costs three seconds, and a stage may hold one work alone.

    Args:
        plan: The plan.
        out: Folder of the benchmark.
        waiting: What is to be done.
        jobs: Works at a time.
        total: Works of this stage, those that are done already among them.
        do: Function of a module; gets the plan's settings, the folder and the work, and says what came out.
        missing: Gets why a work failed, by "row, seed".
    """
    listed = list(waiting)
    settings = plan.model_dump(mode="json")
    began, before = time.monotonic(), total - len(listed)
    for done, (work, said) in enumerate(_outcomes(partial(do, settings, out), listed, jobs), start=1):
        name = f"{plan.rows[work.row].name}, seed {work.seed}"
        failed = isinstance(said, FedretinaError)
        if failed:
            missing[name] = str(said)
        left = (time.monotonic() - began) / done * (len(listed) - done)
        yield Told(before + done, total, f"{name}: {'failed, ' if failed else ''}{said}", left)


def _outcomes(
    do: Callable[[Work], str], works: Sequence[Work], jobs: int
) -> Iterator[tuple[Work, str | FedretinaError]]:
    """Works as they end, each with its words or why it failed."""
    if jobs == 1 or len(works) < 2:
        yield from ((work, _said(partial(do, work))) for work in works)
        return
    with pool(jobs) as workers:
        for work, future in ended(workers, jobs, [(work, partial(do, work)) for work in works]):
            yield work, _said(future.result)


def _said(outcome: Callable[[], str]) -> str | FedretinaError:
    try:
        return outcome()
    except FedretinaError as error:
        return error


def _tried(settings: dict[str, Any], out: Path, work: Work) -> str:
    """Train with one value of a grid; runs in a process of its own."""
    plan = BenchmarkPlan.model_validate(settings)
    choice = plan.rows[work.row]
    experiment = plan.experiment_of(choice, work.seed, work.change)
    try:
        folder = train(plan, choice, work.seed, work.change, out)
        auc = validation_auc(read_json(folder / "server" / "results.json"), experiment.ends_with)
        said = f"validation AUC {'undefined' if auc is None else f'{auc:.3f}'}"
    except DivergedError:  # such as by a rate at which a grid ends: worth less than any other, and no fault
        auc, said = None, "diverged"
    write_json(_tuning(plan, out, work), {"change": work.change, "validation_auc": auc})
    return f"tried {work.change}, {said}"


def _stored(settings: dict[str, Any], out: Path, work: Work) -> str:
    """Run and measure one row with one seed; runs in a process of its own."""
    plan = BenchmarkPlan.model_validate(settings)
    choice = plan.rows[work.row]
    record = store(plan, choice, work.seed, work.change, out)
    aucs = [site["test"]["auc"] for site in record["sites"].values() if site["test"]["auc"] is not None]
    mean = f"{sum(aucs) / len(aucs):.3f}" if aucs else "undefined"
    return f"macro AUC {mean}, {record['seconds']} s"


def _result(plan: BenchmarkPlan, out: Path, work: Work) -> Path:
    return out / "results" / plan.rows[work.row].name / f"seed-{work.seed}.json"


def _tuning(plan: BenchmarkPlan, out: Path, work: Work) -> Path:
    digest = sha256(json.dumps(work.change, sort_keys=True).encode()).hexdigest()[:10]
    return out / "tuning" / plan.rows[work.row].name / f"{digest}.json"
