"""Whether the referral's promise holds: `python -m benchmarks.promise fundus --site NAME=FILE ...`.

The row `analytic` is run over real sites in the plain loop, with every training image. Each site's model then answers
all patients of its validation and test splits, none of whom it learned from. Of these a number is drawn as if they
were the site's validation patients: they set the threshold of doubt and the promise, as at the end of a run, and all
the others are the patients to whom it is made. That is done many times. Beside the product's own threshold, from the
site's own patients, stand one from the patients of all sites together, one from the site's own counts drawn towards
the other sites', and what the product draws where a site's own patients promise nothing. `--render` writes
docs/promise.md from what is stored: counts, and nothing of any patient. The images are not part of the project.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import RESULTS, ROOT, machine
from benchmarks.small_sites import BASE, SETS
from fedretina.data.site_data import SiteData, load_site_data
from fedretina.evaluation.referral_curve import PRIOR, curve_of_others, drawn_threshold, ill_counts
from fedretina.loop import run_loop
from fedretina.prediction.predictor import Predictor
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.scalars import MIN_COUNT
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import PromiseSettings, read_data_settings
from fedretina.storage import write_json
from fedretina.uncertainty.estimators import build_estimator
from fedretina.uncertainty.grade_sets import grade_costs, grade_sets
from fedretina.uncertainty.promise import chance_of_disease, passes_allowed, promised
from fedretina.uncertainty.referral import referral_threshold
from fedretina_papers.packed import pack, unpack

STORED = RESULTS / "promise.jsonl.gz"
ROW: dict[str, Any] = {"row": "analytic", "verdict": "off"}
PROMISES = (PromiseSettings(missed=0.05, sure=0.9), PromiseSettings(missed=0.1, sure=0.9))
PATIENTS = (60, 120, 240)
"""Validation patients that are drawn."""
_LEFT = 40  # ill patients that must be left to make the promise to
_DRAWS = 400
_BATCH = 100
RULES = ("own", "pooled", "drawn", "given", "alone")
"""`given` is what the product gives a site that asks for it, where its own patients promise nothing."""


class Answers(NamedTuple):
    """What a site's model says of patients that it has not learned from; by image but for the last three.

    Attributes:
        probabilities: float64 [N, K].
        u: [N].
        labels: [N].
        who: Number of the patient of each image [N].
        ill: Whether each patient has a referable grade [P].
        graded: Classes that refer by themselves.
        scheme: The site's grades.
    """

    probabilities: NDArray[np.float64]
    u: NDArray[np.float64]
    labels: NDArray[np.int64]
    who: NDArray[np.int64]
    ill: NDArray[np.bool_]
    graded: tuple[int, ...]
    scheme: GradingScheme


def main() -> int:
    """Measure what is not stored yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(SETS), nargs="?")
    parser.add_argument("--site", action="append", default=[], metavar="NAME=FILE", help="a site and its site file")
    parser.add_argument("--draws", type=int, default=_DRAWS)
    parser.add_argument("--scratch", type=Path, default=ROOT / "scratch" / "promise")
    parser.add_argument("--render", action="store_true", help="only write the page")
    chosen = parser.parse_args()
    if not chosen.render:
        _run_all(chosen.set, dict(pair.split("=", 1) for pair in chosen.site), chosen.draws, chosen.scratch)
    from benchmarks.promise_page import write_page

    write_page(STORED)
    return 0


def _run_all(kind: str, files: Mapping[str, str], draws: int, scratch: Path) -> None:
    done = scratch / "stored"
    done.mkdir(parents=True, exist_ok=True)
    if STORED.exists() and not any(done.iterdir()):
        unpack(STORED, done)
    experiment = Experiment.resolve({**merged(merged(BASE, SETS[kind]), ROW), "seed": 1})
    settings = {site: read_data_settings(Path(file), site) for site, file in files.items()}
    data = {
        site: load_site_data(site, settings[site], experiment.images, 1, scratch / "cache" / site) for site in files
    }
    run_loop(experiment, data, scratch / "runs", kind)  # goes on where it stopped
    answers = {
        site: _answers(
            Predictor.load(scratch / "runs" / kind / site, "cpu"), data[site], scratch / f"{kind}-{site}.npz"
        )
        for site in files
    }
    for site in files:
        others = [one for name, one in answers.items() if name != site]
        found = of_site(answers[site], others, experiment.images.ordered, draws, np.random.default_rng(1))
        write_json(done / f"{kind}-{site}.json", {"set": kind, "site": site, **found, "machine": machine()})
    pack(done, STORED)


def _answers(model: Predictor, data: SiteData, kept: Path) -> Answers:
    """Answers over validation and test, kept on disk: they take minutes, and the draws seconds."""
    splits = [data.split(name) for name in ("val", "test")]
    if not kept.exists():
        parts = [
            model.logits(split.images[begin : begin + _BATCH])
            for split in splits
            for begin in range(0, len(split.labels), _BATCH)
        ]
        np.savez(kept, logits=torch.cat(parts).numpy())
    said = build_estimator(Experiment.model_validate(model.card["settings"]).evaluation).predict(
        torch.from_numpy(np.load(kept)["logits"])
    )
    labels = np.concatenate([split.labels.numpy() for split in splits])
    who = np.unique([patient for split in splits for patient in split.patients], return_inverse=True)[1]
    sick = data.scheme.referable_classes
    ill = _by_patient(np.isin(labels, sick), who)
    refers = tuple(sick) + (() if data.scheme.ungradable_class is None else (data.scheme.ungradable_class,))
    return Answers(said.probabilities, said.uncertainty, labels, who, ill, refers, data.scheme)


def of_site(
    own: Answers, others: Sequence[Answers], ordered: bool, draws: int, rng: np.random.Generator
) -> dict[str, Any]:
    """How often each promise held at a site, by rule and by the number of patients drawn.

    Args:
        own: The site's answers.
        others: Those of the other sites, of whom as many patients are drawn, as far as they have them.
        ordered: Whether its grades have an order.
        draws: How many.
        rng: Of the draws.

    Returns:
        The patients and the ill among them; under "drawn", a record for each number of patients, promise and rule;
        under "sets", one for each number of patients.
    """
    records, sets, costs = [], [], grade_costs(own.probabilities, own.scheme, ordered)
    for patients in PATIENTS:
        if (own.ill.size - patients) * own.ill.mean() < _LEFT:
            continue
        tallies = {(at, rule): _Tally() for at in range(len(PROMISES)) for rule in RULES}
        covered, sizes = [], []
        for _ in range(draws):
            drawn = [_drawn(one, patients, rng) for one in (own, *others)]
            held = _sets(own, costs, drawn[0], ordered)
            if held is not None:
                covered.append(held[0])
                sizes.append(held[1])
            scores = [_scores(one, mine) for one, mine in zip((own, *others), drawn, strict=True)]
            for at, asked in enumerate(PROMISES):
                for rule in RULES:
                    by = scores[0].chance if rule == "alone" else scores[0].of_all
                    tallies[at, rule].add(_limit(rule, scores, asked), own, drawn[0], by, asked)
        for (at, rule), tally in tallies.items():
            promised = {"patients": patients, **PROMISES[at].model_dump(include={"missed", "sure"})}
            records.append({**promised, "rule": rule, "draws": draws, **tally.told()})
        if covered:
            sets.append({"patients": patients, "held": float(np.mean(covered)), "size": float(np.mean(sizes))})
    return {"patients": own.ill.size, "ill": int(own.ill.sum()), "drawn": records, "sets": sets}


class _Tally:
    """What a rule came to over draws."""

    def __init__(self) -> None:
        self.given, self.kept = 0, 0
        self.missed: list[float] = []
        self.load: list[float] = []

    def add(
        self,
        limit: float | None,
        own: Answers,
        drawn: NDArray[np.bool_],
        scores: NDArray[np.float64],
        asked: PromiseSettings,
    ) -> None:
        """Take what became of the patients who were not drawn."""
        if limit is None:
            return
        self.given += 1
        passes = scores < limit
        left = ~drawn
        missed = float(passes[left & own.ill].mean())
        self.kept += missed <= asked.missed
        self.missed.append(missed)
        self.load.append(float((~passes)[left].mean()))

    def told(self) -> dict[str, Any]:
        mean = {name: float(np.mean(getattr(self, name))) if self.given else None for name in ("missed", "load")}
        return {"given": self.given, "kept": self.kept, "mean_missed": mean["missed"], "mean_load": mean["load"]}


class _Scored(NamedTuple):
    """The highest chance of disease of each patient, infinite where another reason refers, by a threshold of doubt.

    Attributes:
        of_all: Of all patients [P].
        chance: The same where nothing but the chance of disease refers.
        ill: Of the ill ones that were drawn, sorted.
        plain: Chance [N], whether referred [N], label [N] and patient [N] of the images that were drawn.
        scheme: The site's grades.
    """

    of_all: NDArray[np.float64]
    chance: NDArray[np.float64]
    ill: NDArray[np.float64]
    plain: tuple[NDArray[Any], NDArray[Any], NDArray[Any], list[str]]
    scheme: GradingScheme


def _drawn(one: Answers, patients: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    chosen = np.zeros(one.ill.size, np.bool_)
    chosen[rng.permutation(one.ill.size)[:patients]] = True
    return chosen


def _scores(one: Answers, drawn: NDArray[np.bool_]) -> _Scored:
    mine = drawn[one.who]
    answered = one.probabilities.argmax(1)
    threshold = referral_threshold(one.u[mine], (answered != one.labels)[mine]).value
    referred = np.isin(answered, one.graded) | (one.u >= threshold)
    chance = chance_of_disease(one.probabilities, one.scheme)
    score, alone = np.full(one.ill.size, -math.inf), np.full(one.ill.size, -math.inf)
    np.maximum.at(score, one.who, np.where(referred, math.inf, chance))
    np.maximum.at(alone, one.who, chance)
    plain = (chance[mine], referred[mine], one.labels[mine], [str(at) for at in one.who[mine]])
    return _Scored(score, alone, np.sort(score[drawn & one.ill]), plain, one.scheme)


def _limit(rule: str, scores: Sequence[_Scored], asked: PromiseSettings) -> float | None:
    """The chance from which a patient is referred; infinite where nothing need be added, None without a promise."""
    own = scores[0]
    if rule in ("own", "alone"):
        chance, referred, labels, patients = own.plain
        others_refer = referred if rule == "own" else np.zeros_like(referred)
        found = promised(chance, others_refer, labels, patients, own.scheme, asked)
        return None if found.reason != "kept" else math.inf if found.threshold is None else found.threshold
    if rule == "given":
        return _given(scores, asked)
    if rule == "pooled":
        every = np.sort(np.concatenate([one.ill for one in scores]))
        allowed = passes_allowed(every.size, asked.missed, asked.sure)
        return None if allowed is None else _from(every, allowed)
    from scipy.special import betainc

    # Beta prior with the others' share of passing as its mean, worth PRIOR patients; the largest threshold whose
    # posterior leaves at most 1 - sure for more than `missed`.
    others = np.sort(np.concatenate([one.ill for one in scores[1:]]))
    at = np.unique(np.concatenate([own.ill, others, [math.inf]]))
    passing = np.searchsorted(own.ill, at)
    usual = (np.searchsorted(others, at) + 0.5) / (others.size + 1)
    a, b = PRIOR * usual + passing, PRIOR * (1 - usual) + own.ill.size - passing
    fits = np.flatnonzero(betainc(a, b, asked.missed) >= asked.sure)
    return float(at[fits[-1]]) if fits.size else None


def _given(scores: Sequence[_Scored], asked: PromiseSettings) -> float | None:
    """The product's: the others in the bins that they let go, each at its lower end."""
    if _limit("own", scores, asked) is not None:
        return None
    sent = {str(at): ill_counts(one.ill, MIN_COUNT) for at, one in enumerate(scores)}
    found = drawn_threshold(scores[0].ill, curve_of_others(sent, "0"), asked)
    return None if found is None else math.inf if found.threshold is None else found.threshold


def _from(scores: NDArray[np.float64], allowed: int) -> float:
    return math.inf if np.isfinite(scores).sum() <= allowed else float(scores[allowed])


def _sets(
    own: Answers, costs: NDArray[np.float64], drawn: NDArray[np.bool_], ordered: bool
) -> tuple[float, float] | None:
    """Share of the patients left whose sets hold every true grade, and the mean size; None without a rule."""
    mine = drawn[own.who]
    rule = grade_sets(own.probabilities[mine], own.labels[mine], [str(at) for at in own.who[mine]], own.scheme, ordered)
    if rule.limit is None:
        return None
    left = ~mine & (own.labels != (-1 if own.scheme.ungradable_class is None else own.scheme.ungradable_class))
    outside = costs[np.arange(own.labels.size), own.labels] > rule.limit
    broken = _by_patient(outside & left, own.who)
    there = _by_patient(left, own.who)
    return float(1 - broken[there].mean()), float((costs[left] <= rule.limit).sum(1).mean())


def _by_patient(images: NDArray[np.bool_], who: NDArray[np.int64]) -> NDArray[np.bool_]:
    found = np.zeros(int(who.max()) + 1, np.bool_)
    np.logical_or.at(found, who, images)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
