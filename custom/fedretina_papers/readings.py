"""Other readings of stored answers as rows of their own: one head, temperatures, deep ensembles, the majority."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedretina.errors import FedretinaError, StateError
from fedretina.report.text import rounded
from fedretina.storage import read_json, write_json
from fedretina.uncertainty.temperature import Temperature, fit_temperature
from fedretina_papers.asked import Asked, Outside, Read, keep, read_asked
from fedretina_papers.choices import ReadingChoice
from fedretina_papers.measure import measured
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.statistics.majority_baseline import shares_of
from fedretina_papers.stored import answers_path

_TITLES = {
    "softmax": "{}, final head alone",
    "temperature": "{} + temperature",
    "deep_ensemble": "{} + deep ensemble of {}",
    "disagreement": "{}, u by disagreement",
    "dempster": "{}, fused by Dempster's rule",
    "majority": "Majority: how common each grade is",
}
_FINAL = Read("softmax", "logits_softmax", 1.0)
_READS = {
    "softmax": _FINAL,
    "temperature": _FINAL,
    "deep_ensemble": Read("softmax_mean", "answer", 1.0),
    "disagreement": Read("softmax_disagreement", "answer", 1.0),
    "dempster": Read("evidence_dempster", "answer", 1.0),
    "majority": _FINAL,
}


class Reread(NamedTuple):
    """Stored answers, read anew.

    Attributes:
        asked: Logits and truth.
        read: How they are read.
        temperature: What they were divided by; None for nothing.
    """

    asked: Asked
    read: Read
    temperature: Temperature | None


def derive_readings(plan: BenchmarkPlan, out: Path, tell: Callable[[int, int, str], None]) -> dict[str, str]:
    """Work out every reading whose runs are stored; one that is as new as its runs is left alone.

    Args:
        plan: The plan.
        out: Folder of the benchmark.
        tell: Called after each with its number, how many there are, and what came out.

    Returns:
        Why readings are missing, by "name, seed".
    """
    works = [
        (one, seed, runs)
        for one in plan.readings
        for seed, runs in one.trials(plan.seeds_of(plan.choice(one.of))).items()
    ]
    missing = {}
    for at, (one, seed, runs) in enumerate(works, 1):
        try:
            if _derived(out, one, seed, runs):
                tell(at, len(works), f"{one.name}, seed {seed}: read from {one.of}, {_numbers(runs)}")
        except FedretinaError as error:
            missing[f"{one.name}, seed {seed}"] = str(error)
    return missing


def reread(runs: Sequence[Asked], reading: str) -> Reread:
    """Read stored answers anew.

    Args:
        runs: Of each member for "deep_ensemble", of one run for the others.
        reading: Which.

    Raises:
        StateError: Members answered different images.
    """
    first = runs[0]
    if reading in ("deep_ensemble", "disagreement", "dempster"):
        return Reread(_joined(runs), _READS[reading], None)
    if reading == "majority":
        odds = torch.from_numpy(shares_of(first.val_labels, first.logits.shape[-1])).log().float()
        return Reread(_mapped(first, lambda logits: odds.expand(logits.shape[0], 1, -1)), _FINAL, None)
    alone = _mapped(first, lambda logits: logits[:, -1:])
    if reading == "softmax":
        return Reread(alone, _FINAL, None)
    if not first.val_labels.size:
        kept = Temperature(1.0, 0.0, 0.0, 0, "too_few_images")
        return Reread(alone, _FINAL, kept)
    fitted = fit_temperature(_FINAL.predict(alone.val_logits).probabilities, first.val_labels)
    # In float64: a large T leaves float32 no digits to rank by.
    return Reread(_mapped(alone, lambda logits: logits.double() / fitted.value), _FINAL, fitted)


def _derived(out: Path, one: ReadingChoice, seed: int, runs: Sequence[int]) -> bool:
    paths = [out / "results" / one.of / f"seed-{number}.json" for number in runs]
    lacking = [number for number, path in zip(runs, paths, strict=True) if not path.exists()]
    if lacking:
        raise StateError(f"it reads {one.of}, of which {_numbers(lacking)} did not run.")
    origin = {
        "of": one.of,
        "reading": one.reading,
        "runs": {str(n): hashlib.sha256(path.read_bytes()).hexdigest() for n, path in zip(runs, paths, strict=True)},
    }
    result = out / "results" / one.name / f"seed-{seed}.json"
    if result.exists() and read_json(result).get("reading") == origin:
        return False
    records = [read_json(path) for path in paths]
    sites = {}
    for site in records[0]["sites"]:
        if all(site in record["sites"] for record in records):
            asked = [read_asked(answers_path(out, one.of, number, site)) for number in runs]
            found = reread(asked, one.reading)
            keep(found.asked, found.read, answers_path(out, one.name, seed, site))
            sites[site] = _site(records[0]["sites"][site], found)
    write_json(result, {**_run(records, one, seed), "reading": origin, "sites": sites})
    return True


def _run(records: Sequence[Mapping[str, Any]], one: ReadingChoice, seed: int) -> dict[str, Any]:
    """A record as of a run; what its members took is added up, what belongs to their training alone is left empty."""
    first = records[0]
    if one.reading == "majority":  # what its row took is not taken for it
        nothing = {"seconds": 0.0, "passes": 0.0, "bytes_up": 0, "bytes_down": 0}
        records = [{**first, **nothing, "moved": {phase: {"up": 0, "down": 0} for phase in first["moved"]}}]
    moved = {
        phase: {way: sum(record["moved"][phase][way] for record in records) for way in ("up", "down")}
        for phase in first["moved"]
        if all(phase in record["moved"] for record in records)  # an older record has no end
    }
    seconds = [record["seconds"] for record in records]
    passes = [record.get("passes") for record in records]  # an older record has none
    settings = {**first["settings"], "evaluation": {**first["settings"]["evaluation"], **_settings(one)}}
    return {
        **first,
        "name": one.name,
        "title": _title(first, one),
        "paper": f"read from the stored answers of {one.of}; nothing was trained for it",
        "seed": seed,
        "seconds": None if None in seconds else round(sum(seconds), 1),
        "passes": None if None in passes else sum(passes),
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records),
        "moved": moved,
        "history": [],
        "chosen": None,
        "settings": settings,
        "validation": {},
    }


def _title(first: Mapping[str, Any], one: ReadingChoice) -> str:
    """Temperature scales the final head alone, also where a row has others."""
    several = one.reading == "temperature" and first["settings"]["network"].get("exits") is not None
    of = _TITLES["softmax"].format(first["title"]) if several else first["title"]
    return _TITLES[one.reading].format(of, one.members)


def _settings(one: ReadingChoice) -> dict[str, Any]:
    read = _READS[one.reading]
    return {"estimator": read.estimator, "auc_input": read.auc_input}


def _site(first: Mapping[str, Any], found: Reread) -> dict[str, Any]:
    told: dict[str, Any] = {} if found.temperature is None else {"temperature": _told(found.temperature)}
    kept = {key: value for key, value in first.items() if key not in ("test", "strangers", "others")}
    nothing: dict[str, Any] = {"noise": [], "theta": None, "weight": None, "theta_by_round": [], "weight_by_round": []}
    return {**kept, **nothing, **measured(found.asked, found.read), **told}


def _told(found: Temperature) -> dict[str, Any]:
    return {
        "value": rounded(found.value),
        "nll_before": rounded(found.nll_before),
        "nll_after": rounded(found.nll_after),
        "images": found.images,
        "reason": found.reason,
    }


def _joined(runs: Sequence[Asked]) -> Asked:
    first = runs[0]
    for other in runs[1:]:
        same = (
            other.patients == first.patients
            and other.labels.tolist() == first.labels.tolist()
            and other.val_labels.tolist() == first.val_labels.tolist()
            and set(other.outside) == set(first.outside)
        )
        if not same:
            raise StateError("its members answered different images: delete the results of those that are out of date.")
    return first._replace(
        logits=torch.cat([one.logits for one in runs], 1),
        val_logits=torch.cat([one.val_logits for one in runs], 1),
        outside={
            name: one._replace(logits=torch.cat([run.outside[name].logits for run in runs], 1))
            for name, one in first.outside.items()
        },
    )


def _mapped(asked: Asked, change: Callable[[torch.Tensor], torch.Tensor]) -> Asked:
    def outside(one: Outside) -> Outside:
        return one._replace(logits=change(one.logits))

    return asked._replace(
        logits=change(asked.logits),
        val_logits=change(asked.val_logits),
        outside={name: outside(one) for name, one in asked.outside.items()},
    )


def _numbers(seeds: Sequence[int]) -> str:
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(str(one) for one in seeds)}"
