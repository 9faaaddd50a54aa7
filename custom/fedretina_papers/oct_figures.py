"""The figures behind the OCT tables as a file of their own, so that the page can be made where no answers are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedretina.errors import StateError
from fedretina.evaluation.bootstrap import Interval
from fedretina.storage import read_json, write_json
from fedretina_papers.oct_runs import OctFigures, OctResults, OctRun
from fedretina_papers.oct_stored import oct_results, read_oct_runs
from fedretina_papers.statistics.classification import ClassFigures, Classification
from fedretina_papers.stored import read_benchmark

FIGURES = "oct.json"


def store_oct_figures(out: Path) -> None:
    """Work the figures out from the answers and store them; they tell of no single image.

    Args:
        out: The benchmark's folder, with answers.

    Raises:
        StateError: A record or the answers of a run are missing or damaged.
    """
    results = oct_results(read_oct_runs(out))
    intervals = {name: results.accuracy_interval(name) for name in results.runs}
    record = {
        "sets": list(results.sets),
        "runs": {name: {str(one.run.seed): _record(one) for one in many} for name, many in results.runs.items()},
        "order": list(results.runs),
        "intervals": {name: None if one is None else one._asdict() for name, one in intervals.items()},
    }
    write_json(out / FIGURES, record)


def read_oct_figures(out: Path) -> OctResults:
    """Read the stored figures with the records that they belong to.

    Args:
        out: The benchmark's folder: plan, results, costs and `oct.json`.

    Raises:
        StateError: A file is missing or damaged, or a run has no figures.
    """
    stored = read_json(out / FIGURES)
    runs = {(run.name, str(run.seed)): run for run in read_oct_runs(out, answers=False)}
    lacking = [f"{name}, seed {seed}" for name, seed in runs if seed not in stored["runs"].get(name, {})]
    if lacking:
        raise StateError(
            f"{FIGURES} has no figures of {'; '.join(lacking)}: bring the answers from the machine that ran the "
            "benchmark, or leave these results out."
        )
    found = {
        name: tuple(
            _figures(runs[name, seed], words)
            for seed, words in sorted(stored["runs"][name].items(), key=lambda one: int(one[0]))
            if (name, seed) in runs
        )
        for name in stored["order"]
    }
    intervals = {name: None if one is None else Interval(**one) for name, one in stored["intervals"].items()}
    ran = {name: many for name, many in found.items() if many}
    return OctResults(ran, tuple(stored["sets"]), intervals, read_benchmark(out).apart)


def _record(one: OctFigures) -> dict[str, Any]:
    union = None
    if one.union is not None:
        union = one.union._asdict() | {
            "classes": [figures._asdict() for figures in one.union.classes],
            "confusion": one.union.confusion.tolist(),
        }
    return {"union": union, "accuracy": one.accuracy, "images": one.images, "unseen": sorted(one.unseen)}


def _figures(run: OctRun, record: Mapping[str, Any]) -> OctFigures:
    union = None
    if record["union"] is not None:
        classes = tuple(ClassFigures(**one) for one in record["union"]["classes"])
        confusion = np.array(record["union"]["confusion"], dtype=np.int64)
        union = Classification(**{**record["union"], "classes": classes, "confusion": confusion})
    return OctFigures(
        run=run,
        union=union,
        accuracy=record["accuracy"],
        images=record["images"],
        unseen=frozenset(record["unseen"]),
        right=np.zeros(0, dtype=np.bool_),
        patients=(),
    )
