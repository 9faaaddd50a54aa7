"""Stored runs as the OCT tables take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedretina.exchange.moved import Moved
from fedretina.storage import read_json
from fedretina_papers.costs.forward_cost import ForwardCost
from fedretina_papers.oct_runs import OctResults, OctRun, RoundNote, SiteAnswers
from fedretina_papers.published import published_oct
from fedretina_papers.stored import Benchmark, Record, read_answers, read_benchmark


def read_oct_runs(out: Path, answers: bool = True) -> list[OctRun]:
    """Read every stored run of a benchmark with its answers and costs.

    Args:
        out: The benchmark's folder.
        answers: Whether the answers to single images are read; without them every site has none.

    Raises:
        StateError: There is no plan, or a record or the answers of a run are missing or damaged.
    """
    benchmark = read_benchmark(out)
    found = []
    for name, seeds in benchmark.runs.items():
        costs = out / "costs" / f"{name}.json"
        measured = read_json(costs) if costs.exists() else {}
        found += [_run(benchmark, name, record, measured, out if answers else None) for record in seeds.values()]
    return found


def _run(benchmark: Benchmark, name: str, record: Record, costs: Mapping[str, Any], answers: Path | None) -> OctRun:
    sets = benchmark.plan.get("sets") or {}
    seed = int(record["seed"])
    sites = {}
    for site, one in record["sites"].items():
        classes = tuple(one.get("grade_names") or (f"grade {at}" for at in range(one["grades"])))
        origin, trained = str(sets.get(site, site)), bool(one.get("trained", True))
        if answers is None:
            nothing = np.zeros((0, len(classes)))
            sites[site] = SiteAnswers(origin, classes, np.zeros(0, dtype=np.int64), nothing, (), trained)
        else:
            found = read_answers(answers, name, seed, site)
            sites[site] = SiteAnswers(origin, classes, found.labels, found.probabilities, found.patients, trained)
    cost = {key: costs[key] for key in ForwardCost._fields} if costs else None
    return OctRun(
        name=name,
        seed=seed,
        title=benchmark.title(name),
        encoder=str(record["settings"]["network"]["encoder"]),
        classes=shared_classes(benchmark, record),
        sites=sites,
        moved={phase: Moved(**one) for phase, one in (record.get("moved") or {}).items()},
        history=tuple(RoundNote(**note) for note in record.get("history") or ()),
        cost=None if cost is None else ForwardCost(**cost),
        inference_s=costs.get("seconds"),
        memory_bytes=costs.get("memory_bytes"),
        seconds=record["seconds"],
        passes=record.get("passes"),
        training_images=sum(one["images"]["train"] for one in record["sites"].values() if one.get("trained", True)),
    )


def shared_classes(benchmark: Benchmark, record: Record) -> tuple[str, ...]:
    """The classes that a run's sites share: its own, else the reference's, else those of the site with most grades."""
    for one in (record, *benchmark.runs.get(benchmark.reference, {}).values()):
        if one.get("classes"):
            return tuple(one["classes"])
    return max((tuple(site.get("grade_names") or ()) for site in record["sites"].values()), key=len, default=())


def oct_results(runs: Iterable[OctRun]) -> OctResults:
    """Figures of runs, the names in the order of the paper's tables.

    Raises:
        SettingsError: Two runs share name and seed.
        TrainingError: Labels or probabilities are unfit.
    """
    paper = published_oct()
    return OctResults.of(runs, (paper.proposed, *(name for table in paper.tables.values() for name in table.rows)))
