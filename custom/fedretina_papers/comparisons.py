"""One row against the reference: over seeds, over patients, and for referable disease by DeLong's test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedretina.errors import StateError
from fedretina.evaluation.bootstrap import ResampledFigures
from fedretina.report.text import rounded
from fedretina.seeds import derive_seed
from fedretina_papers.engine.records import Records
from fedretina_papers.measures import MEASURES
from fedretina_papers.statistics.beats_every import CLEAR, Against, adjusted, hardest
from fedretina_papers.statistics.delong import delong_test
from fedretina_papers.statistics.multiple_tests import over_dependent, stouffer
from fedretina_papers.statistics.paired_bootstrap import (
    Column,
    Difference,
    Sample,
    difference_of,
    draw_together,
    mean_over_seeds,
    mean_over_sites,
)
from fedretina_papers.statistics.paired_seeds import seed_test, smallest_seen
from fedretina_papers.stored import Answers, Benchmark

Drawn = Mapping[tuple[str, int], Mapping[str, Column]]
"""Figures in every draw, by row and seed."""
SiteAnswers = Mapping[tuple[str, int], Answers]
"""Answers at one site, by row and seed."""
_DRAWN = frozenset(key for key, measure in MEASURES.items() if measure.drawn)
_ROUNDING = 1e-3  # records may be rounded; another run's answers differ by more


def drawn_figures(answers: SiteAnswers, site: str, draws: int) -> dict[tuple[str, int], dict[str, Column]]:
    """Compute the figures of every row and seed at one site under the same draws of its patients."""
    samples = []
    for one in answers.values():
        figures = ResampledFigures(
            one.probabilities, one.labels, one.uncertainty, one.scores, one.scores, one.referral, _DRAWN
        )
        samples.append(Sample(figures, one.patients))
    found = draw_together(samples, derive_seed("benchmark", site), draws)  # no draw of one site tells of another's
    return dict(zip(answers, found, strict=True))


def require_same(answers: SiteAnswers, benchmark: Benchmark, site: str) -> None:
    """Check that rows are paired image by image, and that answers and records are of the same run.

    Raises:
        StateError: Two rows were asked about different images, or a record tells another accuracy than its answers.
    """
    for (name, seed), one in answers.items():
        other = answers.get((benchmark.reference, seed), one)
        if one.patients != other.patients or not np.array_equal(one.labels, other.labels):
            raise StateError(
                f"{name} and {benchmark.reference} answered different test images at {site} under seed {seed}: delete "
                "the answers and results of the one that is out of date, and run it again."
            )
        stored = benchmark.figure(name, seed, site, "accuracy")
        if stored is not None and abs(stored - float(np.mean(~one.wrong))) > _ROUNDING:
            raise StateError(
                f"the record of {name}, seed {seed}, tells another accuracy at {site} than its answers do: they are "
                "of different runs. Delete both and run this seed again."
            )


def shared_patients(answers: SiteAnswers) -> float:
    """Share of a seed's test patients that another seed tests too, the mean over pairs of seeds; 1 for one seed."""
    people = {seed: frozenset(one.patients) for (_, seed), one in answers.items()}
    pairs = [
        len(one & other) / len(one) for seed, one in people.items() for rival, other in people.items() if seed != rival
    ]
    return sum(pairs) / len(pairs) if pairs else 1.0


def compare_site(
    benchmark: Benchmark, records: Records, name: str, site: str, answers: SiteAnswers, drawn: Drawn
) -> dict[str, Any]:
    """Compare a row with the reference at one site."""
    seeds = [seed for seed in benchmark.paired_seeds(name) if (name, seed) in answers]
    alone = len({patient for (_, seed), one in answers.items() if seed in seeds for patient in one.patients}) < 2
    found: dict[str, Any] = {}
    for key in MEASURES:
        column = seed_draws(benchmark, name, key, seeds, drawn)
        drawn_gap = None if column is None else difference_of(column, alone=alone)
        found[key] = _tests(records.gaps(benchmark.reference, name, f"test.{key}", site), drawn_gap)
    return {"measures": found, "delong": _delong(benchmark, name, seeds, answers)}


def compare_mean(
    benchmark: Benchmark,
    records: Records,
    name: str,
    sites: Mapping[str, Mapping[str, Any]],
    drawn: Mapping[str, Drawn],
) -> dict[str, Any]:
    """Compare a row with the reference over the plain mean of the sites; DeLong's z by Stouffer."""
    found: dict[str, Any] = {}
    for key in MEASURES:
        columns = [seed_draws(benchmark, name, key, benchmark.paired_seeds(name), drawn[site]) for site in sites]
        there = [column for column in columns if column is not None]
        mean = mean_over_sites(there)
        gap = None if mean is None else difference_of(mean)
        found[key] = _tests(records.gaps(benchmark.reference, name, f"test.{key}"), gap)
    tests = [entry["delong"] for entry in sites.values() if entry["delong"] is not None]
    combined = stouffer([test["z"] for test in tests])
    gaps = [test["difference"] for test in tests]
    delong = {"difference": rounded(sum(gaps) / len(gaps)) if gaps else None, **_rounded(combined._asdict())}
    return {"measures": found, "delong": delong}


def beaten_least(
    benchmark: Benchmark, records: Records, key: str, sites: Sequence[str], drawn: Mapping[str, Drawn]
) -> dict[str, Against]:
    """Each federated row against the rows alone on the same sites, by one figure, as blocks have it.

    Rows on sites that no row alone has are left out. While a row alone has not run in all seeds of a row, that row has
    no p, unless it is behind another: nobody can say that it beats them all.

    Args:
        benchmark: What was run.
        records: Its records.
        key: The figure.
        sites: The sites.
        drawn: Figures in every draw, by site.
    """
    level = CLEAR / max(1, len(benchmark.together))
    sign = 1 if MEASURES[key].higher else -1
    found = {}
    for name in benchmark.together:
        alone = [
            one for one in benchmark.alone if benchmark.trained_on(one) in (benchmark.trained_on(name), frozenset())
        ]
        tests = {}
        for one in (other for other in alone if other in benchmark.runs):
            seeds = benchmark.paired_seeds(one, name)
            gaps = [sign * gap for gap in records.gaps(name, one, f"test.{key}")]
            column = mean_over_sites(
                [
                    each
                    for site in sites
                    if (each := seed_draws(benchmark, one, key, seeds, drawn[site], name)) is not None
                ]
            )
            variance = None if column is None else difference_of(column).variance
            test = seed_test(gaps, variance or 0.0)
            if variance is None:  # seeds alone carry no claim
                test = test._replace(low=None, high=None, p=None)
            tests[one] = (test, None if variance is None else smallest_seen(test.n, test.sd, variance, level=level))
        if tests:
            whole = all(set(benchmark.runs[name]) <= set(benchmark.runs.get(one, {})) for one in alone)
            against = hardest(key, tests)
            found[name] = [against if whole or against.p == 1 else against._replace(p=None)]
    return {name: one for name, (one,) in adjusted(found).items()}


def seed_draws(
    benchmark: Benchmark, name: str, key: str, seeds: Sequence[int], drawn: Drawn, from_row: str = ""
) -> Column | None:
    """Reference, or another row, less row in every draw of a site, the mean over seeds; None where none has both."""
    other = from_row or benchmark.reference
    pairs = [
        (drawn[other, seed][key], drawn[name, seed][key])
        for seed in seeds
        if key in drawn.get((name, seed), {}) and key in drawn.get((other, seed), {})
    ]
    return mean_over_seeds([ours for ours, _ in pairs], [theirs for _, theirs in pairs]) if pairs else None


def _tests(gaps: Sequence[float], drawn: Difference | None) -> dict[str, Any]:
    """A difference by the test over seeds, over patients, and together."""
    seeds = seed_test(gaps)
    variance = None if drawn is None else drawn.variance
    together = None if variance is None else seed_test(gaps, variance)
    return {
        "difference": rounded(seeds.mean),
        "by_seed": [rounded(gap) for gap in gaps],
        "seeds": _rounded({key: value for key, value in seeds._asdict().items() if key != "mean"}),
        "patients": None if drawn is None else {**_rounded(drawn._asdict()), "variance": variance},
        "together": None
        if together is None
        else _rounded({key: getattr(together, key) for key in ("low", "high", "p")}),
    }


def _delong(benchmark: Benchmark, name: str, seeds: Sequence[int], answers: SiteAnswers) -> dict[str, Any] | None:
    tests = []
    for seed in seeds:
        ours, theirs = answers[benchmark.reference, seed].referral, answers[name, seed].referral
        if ours is None or theirs is None:
            continue
        people = np.asarray(answers[name, seed].patients)[ours.kept].tolist()
        test = delong_test(ours.score, theirs.score, ours.diseased, people) if people else None
        if test is not None:
            tests.append(test)
    if not tests:
        return None
    found = over_dependent([test.difference for test in tests], [test.variance for test in tests])
    return _rounded(found._asdict())


def _rounded(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: rounded(value) if isinstance(value, float) else value for key, value in entry.items()}
