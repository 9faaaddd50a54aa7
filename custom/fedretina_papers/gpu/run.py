"""The works of the plan within a call's budget, each stored as it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from fedretina.errors import FedretinaError, SettingsError
from fedretina.locks import folder_lock
from fedretina.storage import read_json, write_json
from fedretina.version import versions
from fedretina_papers.gpu.measure import measure
from fedretina_papers.gpu.plan import GpuPlan, Work
from fedretina_papers.one_run import machine
from fedretina_papers.paper_size.limits import Budget, Limits
from fedretina_papers.runner import Told

RESULTS = "results"


def run_gpu(plan: GpuPlan, out: Path, jobs: int, limits: Limits, tell: Callable[[Told], None]) -> dict[str, str]:
    """Measure what is missing, until all is stored or the time is over.

    Args:
        plan: The plan; a folder that holds another plan's results is refused.
        out: Folder of the benchmark; it may be taken to another machine whole.
        jobs: 1: beside another nothing is measured.
        limits: What the call may take. The time of what was longest so far is kept for each that is begun, and half a
            minute, or a quarter of a short call, for the first.
        tell: Called after each, and of what is left at the end.

    Returns:
        Why works cannot be, by name; works that wait for the next call are not among them.

    Raises:
        SettingsError: The folder belongs to another plan, or several jobs are asked for.
        StateError: The folder is in use, or cannot be written.
    """
    if jobs != 1:
        raise SettingsError("gpu measures one thing at a time: leave --jobs out.")
    budget, works, asked = Budget.of(limits), plan.works(), plan.model_dump(mode="json")
    missing: dict[str, str] = {}
    longest = 0.0
    with folder_lock(out, 0):
        if (out / "plan.json").exists() and read_json(out / "plan.json") != asked:
            raise SettingsError(f"{out.name} holds what was measured under another plan: name another folder.")
        write_json(out / "plan.json", asked)

        def say(words: str, seconds: float | None = None) -> None:
            tell(Told(sum(_stored(out, one) for one in works), len(works), words, seconds))

        for work in [work for work in works if not _stored(out, work)]:
            began = budget.clock()
            if budget.left <= (longest or budget.unknown):
                say(f"the time of this call is over; the next call goes on with {work.name}")
                break
            try:
                found = measure(plan, work, limits.cache_of(out))
            except (FedretinaError, RuntimeError) as error:  # torch's too: one must not cost the time of the others
                full = isinstance(error, torch.OutOfMemoryError)
                missing[work.name] = "the memory of the device is full." if full else str(error).partition("\n")[0]
                say(f"{work.name}: {missing[work.name]}")
                continue
            took = budget.clock() - began
            longest = max(longest, took)
            record = {**found, "seconds": round(took, 1), "machine": machine(), "versions": versions()}
            write_json(out / RESULTS / f"{work.name}.json", record)
            rate = found.get("images_s") or median(found["real"])
            left = sum(not _stored(out, one) for one in works)
            say(f"{work.name}: {rate:.0f} images/s in {took:.0f} s", longest * left)
    return missing


def _stored(out: Path, work: Work) -> bool:
    """Whether a work was measured, on the same kind of card as this machine's."""
    file = out / RESULTS / f"{work.name}.json"
    return file.exists() and read_json(file)["machine"]["gpu"] == machine()["gpu"]
