"""FedEE's figures of each run at each site, worked out from the answers and stored, so that a page needs no answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedretina.errors import StateError
from fedretina.evaluation.bootstrap import exact_interval
from fedretina.evaluation.metrics import aurc, auroc, brier, ece, error_detection_auroc, nll
from fedretina.report.text import rounded
from fedretina.seeds import derive_seed
from fedretina.settings.evaluation import EvaluationSettings
from fedretina.storage import read_json, write_json
from fedretina.uncertainty.evidence import as_if_graded
from fedretina_papers.asked import Asked, Read, read_asked
from fedretina_papers.statistics.classification import classification
from fedretina_papers.statistics.conformal import conformal_quantile, judge_sets, prediction_sets
from fedretina_papers.statistics.majority_baseline import majority_baseline
from fedretina_papers.statistics.refer_for_accuracy import at_threshold, refer_for_accuracy
from fedretina_papers.statistics.selective import selective_accuracy, selective_balanced_accuracy
from fedretina_papers.stored import Answers, Benchmark, answers_path, read_answers, read_benchmark

FIGURES = "fedee.json"
FORMAT = 2
RATES = tuple(round(0.1 * tenth, 1) for tenth in range(10))
"""Shares of the least sure cases that are referred (FedEE, Figure 4)."""
PAPER_RATE = 0.4
DRAWS = 400
BINS = 20
"""Bins of u in the stored distributions."""


def store_fedee_figures(out: Path, draws: int = DRAWS) -> dict[str, Any]:
    """Work out every figure of every run and store them in `fedee.json`; none tells of a single case.

    Args:
        out: The benchmark's folder, with answers.
        draws: Draws of the patients behind the interval of the cases to refer.

    Returns:
        What was stored.

    Raises:
        StateError: A record or the answers of a run are missing or damaged.
    """
    benchmark = read_benchmark(out)
    before = read_json(out / FIGURES) if (out / FIGURES).exists() else {}
    asked = {"format": FORMAT, "level": list(_level(benchmark)), "alpha": _alpha(benchmark), "draws": draws}
    known = before.get("runs", {}) if before.get("asked") == asked else {}
    runs: dict[str, dict[str, Any]] = {}
    for name, seeds in benchmark.runs.items():
        for seed, record in seeds.items():
            stamp = _stamp(record)
            old = known.get(name, {}).get(str(seed))
            fresh = old is None or old["stamp"] != stamp
            runs.setdefault(name, {})[str(seed)] = (
                {"stamp": stamp, **_of_run(out, benchmark, name, seed, draws)} if fresh else old
            )
    found = {"asked": asked, "runs": runs}
    write_json(out / FIGURES, found)
    return found


def read_fedee_figures(out: Path) -> dict[str, Any]:
    """Read the stored figures and check that they belong to the stored runs.

    Raises:
        StateError: The file is missing or damaged, or a run has no figures.
    """
    found = read_json(out / FIGURES)
    benchmark = read_benchmark(out)
    lacking = [
        f"{name}, seed {seed}"
        for name, seeds in benchmark.runs.items()
        for seed, record in seeds.items()
        if found["runs"].get(name, {}).get(str(seed), {}).get("stamp") != _stamp(record)
    ]
    if lacking:
        raise StateError(
            f"{FIGURES} has no figures of {'; '.join(lacking)}, or older ones: bring the answers from the machine that "
            "ran the benchmark, or leave these results out."
        )
    return found


def site_figures(answers: Answers, asked: Asked, read: Read, level: Sequence[float], alpha: float) -> dict[str, Any]:
    """Figures of one run at one site.

    Args:
        answers: To the test images.
        asked: The same before they were read, with the validation images.
        read: How logits are read.
        level: Accuracies to reach by referring cases.
        alpha: Error rate of the sets.
    """
    p, u, labels = answers.probabilities, answers.uncertainty, answers.labels
    wrong, predicted = answers.wrong, np.argmax(answers.probabilities, axis=1)
    detection = error_detection_auroc(u, wrong)
    figures = classification(p, labels)
    val = read.predict(asked.val_logits)
    val_wrong = np.not_equal(np.argmax(val.probabilities, axis=1), asked.val_labels) if asked.val_labels.size else None
    return {
        "images": int(labels.size),
        "accuracy": rounded(figures.accuracy),
        "balanced_accuracy": rounded(figures.recall),
        "misdetection": rounded(detection),
        # FedEE's code counts the best value where all answers are right, or all wrong: a small site lifts the mean.
        "misdetection_fedee": rounded(1.0 if detection is None else detection),
        "selective": {
            "accuracy": [rounded(selective_accuracy(u, wrong, rate)) for rate in RATES],
            "balanced_accuracy": [rounded(selective_balanced_accuracy(u, predicted, labels, rate)) for rate in RATES],
        },
        "aurc": rounded(aurc(u, wrong)),
        "ece": rounded(ece(p, labels)),
        "brier": rounded(brier(p, labels)),
        "nll": rounded(nll(p, labels)),
        "refer": {str(one): _refer(u, wrong, one, val.uncertainty, val_wrong) for one in level},
        "sets": _sets(answers, asked, val.probabilities, alpha),
        "u": _distributions(answers, asked, read),
        "constant": {
            key: rounded(value)
            for key, value in majority_baseline(asked.val_labels, labels, p.shape[1])._asdict().items()
        },
        "members": member_figures(asked, read),
    }


def member_figures(asked: Asked, read: Read) -> list[dict[str, Any]]:
    """Figures of each exit, pass or run at a site, the final head last; nothing of one answer alone.

    Args:
        asked: Logits and truth.
        read: How all members are read together; each is read alone in the same way.

    Returns:
        For each member its accuracy, and by set of out-of-distribution images the AUROC of its own u, larger than 0.5
        where these images are less certain than own ones.
    """
    if asked.logits.ndim < 3 or asked.logits.shape[1] < 2 or not asked.labels.size:
        return []
    alone = Read(
        "evidence" if EvaluationSettings.of(read.estimator).evidential else "softmax", read.auc_input, read.tau
    )
    outside = {name: one for name, one in asked.outside.items() if not one.other_site and one.logits.shape[0]}
    found = []
    for member in range(asked.logits.shape[1]):
        own = alone.predict(asked.logits[:, member])
        right = np.argmax(own.probabilities, axis=1) == asked.labels
        away = {name: alone.predict(one.logits[:, member]).uncertainty for name, one in outside.items()}
        noticed = {name: rounded(_auroc(own.uncertainty, u)) for name, u in away.items()}
        found.append({"accuracy": rounded(float(np.mean(right))), "strangers": noticed})
    return found


def _auroc(inside: np.ndarray, outside: np.ndarray) -> float | None:
    is_outside = np.repeat([False, True], [inside.size, outside.size])
    return auroc(np.concatenate([inside, outside]), is_outside)


def _of_run(out: Path, benchmark: Benchmark, name: str, seed: int, draws: int) -> dict[str, Any]:
    record = benchmark.runs[name][seed]
    chosen = record["settings"]["evaluation"]
    read = Read(chosen["estimator"], chosen["auc_input"], 1.0)
    level, alpha = _level(benchmark), _alpha(benchmark)
    sites, answered = {}, {}
    for site in record["sites"]:
        answered[site] = read_answers(out, name, seed, site)
        asked = read_asked(answers_path(out, name, seed, site))
        sites[site] = site_figures(answered[site], asked, read, level, alpha)
    return {"sites": sites, "refer": {str(one): _refer_all(answered, read, one, draws) for one in level}}


def _refer_all(answers: Mapping[str, Answers], read: Read, target: float, draws: int) -> dict[str, Any]:
    """Cases of all sites together, ranked by u: entropy over log K as it is, K / S as if all had as many grades."""
    grades = max(one.probabilities.shape[1] for one in answers.values())
    u = np.concatenate([_comparable(one, read, grades) for one in answers.values()])
    wrong = np.concatenate([one.wrong for one in answers.values()])
    patients = [f"{site} {who}" for site, one in answers.items() for who in one.patients]
    seed = derive_seed("refer", repr(target))  # the same draws for every row
    doctor = refer_for_accuracy(u, wrong, target, "with_doctor", patients, seed, draws)
    alone = refer_for_accuracy(u, wrong, target, "kept")
    return {
        "with_doctor": rounded(doctor.rate),
        "interval": None
        if doctor.interval is None
        else {"low": rounded(doctor.interval.low), "high": rounded(doctor.interval.high)},
        "kept": rounded(alone.rate),
    }


def _comparable(answers: Answers, read: Read, grades: int) -> np.ndarray:
    """U on a scale that sites with other numbers of grades share ; K / S is none by itself."""
    mass = read.estimator in ("evidence", "evidence_mean")
    return as_if_graded(answers.uncertainty, answers.probabilities.shape[1], grades) if mass else answers.uncertainty


def _refer(
    u: np.ndarray, wrong: np.ndarray, target: float, val_u: np.ndarray, val_wrong: np.ndarray | None
) -> dict[str, Any]:
    """What the threshold that validation gives does on a site's test images."""
    if val_wrong is None:
        return {"validated": None}
    reached = at_threshold(u, wrong, refer_for_accuracy(val_u, val_wrong, target, "kept").threshold)
    return {"validated": {"rate": rounded(reached.rate), "accuracy": rounded(reached.accuracy)}}


def _sets(answers: Answers, asked: Asked, val: np.ndarray, alpha: float) -> dict[str, Any]:
    quantile = conformal_quantile(val, asked.val_labels, alpha)
    found = judge_sets(prediction_sets(answers.probabilities, quantile), answers.labels)
    share, patients = found.coverage, len(set(answers.patients))
    if patients < answers.labels.size:  # as if a patient's images said the same: never too narrow
        wide = exact_interval(round(patients * share.value), patients)
        share = share if wide is None else share._replace(high=wide.high)
    return {"coverage": rounded(share.value), "high": rounded(share.high), "size": rounded(found.mean_size)}


def _distributions(answers: Answers, asked: Asked, read: Read) -> dict[str, Any]:
    """Counts of images by u: own test images, other sites', and each out-of-distribution set."""
    kinds: dict[str, list[np.ndarray]] = {"own": [answers.uncertainty]}
    for name, one in asked.outside.items():
        kinds.setdefault("other sites" if one.other_site else name, []).append(read.predict(one.logits).uncertainty)
    found = {}
    for kind, parts in kinds.items():
        u = np.clip(np.concatenate(parts), 0, 1)
        counts = np.bincount(np.minimum((u * BINS).astype(np.int64), BINS - 1), minlength=BINS)
        found[kind] = {"counts": counts.tolist()}
    return found


def _stamp(record: Mapping[str, Any]) -> list[Any]:
    """What tells a run's record from that of another run in its place."""
    return [rounded(sum(site["test"][key] for site in record["sites"].values())) for key in ("accuracy", "nll", "aurc")]


def _level(benchmark: Benchmark) -> tuple[float, ...]:
    return tuple(benchmark.plan.get("level") or (0.9, 0.95))


def _alpha(benchmark: Benchmark) -> float:
    return float(benchmark.plan.get("alpha") or 0.1)
