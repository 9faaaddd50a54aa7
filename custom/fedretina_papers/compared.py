"""The stored comparison of all rows with the reference: `statistics.json`, from plan, records and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedretina.exchange.min_count import place
from fedretina.report.text import rounded
from fedretina.storage import write_json
from fedretina_papers.comparisons import (
    SiteAnswers,
    beaten_least,
    compare_mean,
    compare_site,
    drawn_figures,
    require_same,
    shared_patients,
)
from fedretina_papers.engine.records import Records
from fedretina_papers.measures import MEASURES
from fedretina_papers.statistics.beats_every import Against
from fedretina_papers.statistics.multiple_tests import holm
from fedretina_papers.stored import read_answers, read_benchmark

STATISTICS = "statistics.json"
FORMAT = 1
DRAWS = 4000
LEVEL = 0.95
BINS = 20
"""Bins of u in the stored distributions."""


def statistics(out: Path, draws: int = DRAWS) -> dict[str, Any]:
    """Compare every row with the reference, per site and over the mean of the sites, and store it.

    A difference is reference less row. Over seeds it is asked whether another training would come out alike, over
    drawn patients whether other patients would, and together whether both at once would, which is what a claim needs:
    the two chances add up. DeLong's test, with the eyes of a patient together, asks about patients in closed form, for
    referable disease.

    Holm's adjustment takes each measure and each test as a family: over all rows for the mean of the sites, and over
    all rows and sites for the sites. A federated row is also set against every row alone on the same sites.

    Args:
        out: The benchmark's folder.
        draws: Draws of the patients.

    Returns:
        What was stored in `statistics.json`; the same bytes for the same runs.

    Raises:
        StateError: The plan, a record or the answers of a run are missing, damaged or do not belong together.
    """
    benchmark = read_benchmark(out)
    records = Records(benchmark.runs, benchmark.sites)
    sites: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in benchmark.rivals}
    drawn: dict[str, Any] = {}
    tested: dict[str, dict[str, Any]] = {}
    uncertainty: dict[str, dict[str, Any]] = {name: {} for name in benchmark.runs}
    for site in benchmark.sites:
        answers = {
            (name, seed): read_answers(out, name, seed, site)
            for name, seeds in benchmark.runs.items()
            for seed, run in seeds.items()
            if site in run["sites"]
        }
        if not answers:
            continue
        require_same(answers, benchmark, site)
        drawn[site] = drawn_figures(answers, site, draws)
        tested[site] = {**_tested(answers), "shared": rounded(shared_patients(answers))}
        for name in benchmark.runs:
            if any(row == name for row, _ in answers):
                uncertainty[name][site] = _distribution(answers, name)
        for name in benchmark.rivals:
            shared = [seed for seed in benchmark.paired_seeds(name) if (name, seed) in answers]
            if any((benchmark.reference, seed) in answers for seed in shared):
                sites[name][site] = compare_site(benchmark, records, name, site, answers, drawn[site])
    comparisons = {
        name: {
            "seeds": list(benchmark.paired_seeds(name)),
            "sites": sites[name],
            "mean": compare_mean(benchmark, records, name, sites[name], drawn),
        }
        for name in benchmark.rivals
    }
    _adjust(comparisons)
    found = {
        "format": FORMAT,
        "reference": benchmark.reference,
        "draws": draws,
        "level": LEVEL,
        "runs": {name: sorted(seeds) for name, seeds in benchmark.runs.items()},
        "tested": tested,
        "uncertainty": uncertainty,
        "comparisons": comparisons,
        "beaten_least": {
            key: {name: _told(one) for name, one in beaten_least(benchmark, records, key, list(drawn), drawn).items()}
            for key, measure in MEASURES.items()
            if measure.drawn
        },
    }
    write_json(out / STATISTICS, found)
    return found


def _told(one: Against) -> dict[str, Any]:
    test = {key: rounded(value) if isinstance(value, float) else value for key, value in one.test._asdict().items()}
    return {"control": one.control, **test, "seen": rounded(one.seen), "holm": rounded(one.adjusted)}


def _adjust(comparisons: Mapping[str, dict[str, Any]]) -> None:
    """Add Holm's adjusted p to every test."""
    means = [row["mean"] for row in comparisons.values()]
    cells = [site for row in comparisons.values() for site in row["sites"].values()]
    for family in (means, cells):
        for key in MEASURES:
            entries = [cell["measures"][key] for cell in family]
            for test in ("seeds", "patients", "together"):
                _family([entry[test] for entry in entries if entry[test] is not None])
        _family([cell["delong"] for cell in family if cell["delong"] is not None])


def _family(tests: list[dict[str, Any]]) -> None:
    for test, adjusted in zip(tests, holm([test["p"] for test in tests]), strict=True):
        test["holm"] = rounded(adjusted)


def _tested(answers: SiteAnswers) -> dict[str, int]:
    """Patients behind all seeds together, and what one seed's macro AUC rests on at least."""
    return {
        "patients": len({patient for one in answers.values() for patient in one.patients}),
        "images": min(one.labels.size for one in answers.values()),
        "rarest_grade": min(int(size) for one in answers.values() for size in _sizes(one.labels)),
    }


def _sizes(labels: np.ndarray) -> Iterator[int]:
    yield from np.unique(labels, return_counts=True)[1]


def _distribution(answers: SiteAnswers, name: str) -> dict[str, Any]:
    """Right and wrong answers of a row at a site by u, all seeds together."""
    ours = [one for (row, _), one in answers.items() if row == name]
    u = np.clip(np.concatenate([one.uncertainty for one in ours]), 0, 1)
    wrong = np.concatenate([one.wrong for one in ours])
    found: dict[str, Any] = {}
    for side, chosen in (("right", ~wrong), ("wrong", wrong)):
        found[side] = np.bincount(place(u[chosen], BINS), minlength=BINS).tolist()
        found[f"median_{side}"] = rounded(np.median(u[chosen])) if np.any(chosen) else None
    return found
