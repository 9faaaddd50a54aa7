"""A benchmark's folder as the runner leaves it, with answers whose quality is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedretina.evaluation.metrics import (
    accuracy,
    aurc,
    auroc,
    brier,
    ece,
    error_detection_auroc,
    macro_auc,
    nll,
    quadratic_kappa,
)
from fedretina.seeds import generator
from fedretina.storage import write_json
from fedretina_papers.stored import referral

TITLES = {"feduaa": "FedUAA", "feduaa_tuned": "FedUAA", "fedbn": "FedBN, personal head", "singleset": "SingleSet"}
ROLES = {"singleset": "alone", "singleset_longer": "alone", "probe": "alone", "one_place": "pooled"}
QUALITY = {"feduaa": 1.6, "fedbn": 1.55, "singleset": 0.7}
STEPS = tuple(f"train-{number:04}" for number in range(4))


def write_benchmark(
    out: Path,
    rows=("singleset", "fedbn", "feduaa"),
    seeds=(1, 2, 3),
    sites=("aptos2019", "odir5k"),
    *,
    quality=QUALITY,
    patients=60,
    splits="given",
    synthetic=False,
    noise=True,
    wobble=0.05,
    run=None,
    twins=None,
):
    """Write plan, records and answers.

    Args:
        out: The folder.
        rows: Rows of the plan.
        seeds: Seeds of the plan.
        sites: Sites of the plan; each second one has 4 grades and none that is referable, the others have 5.
        quality: How far a row's evidence stands above its noise.
        patients: Of each test set, with two eyes each.
        splits: "given" or "repeated"; repeated ones draw two thirds of the patients anew for each seed.
        synthetic: Whether the sites say that they are phantoms.
        noise: Whether records hold the noise study.
        wobble: How far a seed moves the quality.
        run: Rows that were run; all by default.
        twins: Row to the row whose answers it gives to the letter.
    """
    write_json(
        out / "plan.json",
        {
            "name": "made",
            "rows": list(rows),
            "seeds": list(seeds),
            "sites": list(sites),
            "reference": "feduaa",
            "splits": splits,
            "roles": {name: ROLES.get(name, "federated") for name in rows},
            "tuning": {
                "feduaa": {
                    "chosen": {"tau": 0.5},
                    "tried": [{"setting": "tau", "tried": {"0.05": 0.61, "0.5": 0.64}, "chosen": 0.5, "edge": True}],
                }
            },
            "settings": {"rounds": 4, "images": 200},
        },
    )
    for name in rows if run is None else run:
        for seed in seeds:
            like = (twins or {}).get(name, name)
            _write_run(out, name, like, seed, sites, quality.get(like, 1.0), patients, splits, synthetic, noise, wobble)


def _write_run(out, name, like, seed, sites, quality, patients, splits, synthetic, noise, wobble):
    level = quality + wobble * generator("seed", like, seed).normal()
    records = {}
    for at, site in enumerate(sites):
        grades = 5 if at % 2 == 0 else 4
        answers = made_answers(like, seed, site, grades, level, patients, splits)
        folder = out / "answers" / name / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{site}.npz", **answers)
        records[site] = _site_record(answers, grades, synthetic, noise, level)
    write_json(
        out / "results" / name / f"seed-{seed}.json",
        {
            "name": name,
            "row": name.removesuffix("_tuned"),
            "title": TITLES.get(name, name),
            "paper": "",
            "seed": seed,
            "loop_only": False,
            "seconds": 61.0 + seed,
            "bytes_up": 0 if name == "singleset" else 41_000_000,
            "bytes_down": 0 if name == "singleset" else 43_000_000,
            "rounds": 4,
            "passes": 48.0 if name == "fedrep" else 8.0,
            "chosen": STEPS[2],
            "settings": {
                "network": {"encoder": "resnet18"},
                "images": {"image_size": 32},
                "training": {"batch_size": 8, "learning_rate": 0.02, "momentum": 0.9},
            },
            "versions": {"torch": "2.14", "fedretina": "0.1"},
            "machine": {"cores": 2, "processor": "made", "memory_gib": 8, "gpu": None},
            "tuned": {},
            "validation": {
                step: {"mean_auc": 0.6 + 0.02 * number, "auc": dict.fromkeys(sites, 0.6 + 0.02 * number)}
                for number, step in enumerate(STEPS)
            },
            "sites": records,
        },
    )


def made_answers(name, seed, site, grades, level, patients, splits):
    """Answers of two eyes a patient; the truth and half of the noise belong to the patient, not to the row."""
    everyone = [f"{site}-{number:03}" for number in range(patients if splits == "given" else 3 * patients // 2)]
    chosen = generator("split", site, seed if splits == "repeated" else 0).permutation(len(everyone))[:patients]
    labels, shared = [], []
    for number in chosen:
        own = generator("patient", site, int(number))
        labels += [int(own.choice(grades, p=_prevalence(grades)))] * 2
        shared += [own.normal(size=grades)] * 2
    truth = np.array(labels)
    rng = generator("answers", name, site, seed)
    evidence = level * np.eye(grades)[truth] + 0.8 * np.array(shared) + 0.6 * rng.normal(size=(truth.size, grades))
    odds = np.exp(evidence)
    probabilities = odds / odds.sum(1, keepdims=True)
    return {
        "probabilities": probabilities,
        "uncertainty": 1 - np.max(probabilities, axis=1),
        "labels": truth,
        "patients": np.repeat(np.array(everyone)[chosen], 2),
        "scores": probabilities,
        "referable": np.array([2, 3, 4] if grades == 5 else [], dtype=np.int64),
        "ungradable": np.int64(-1),
    }


def _prevalence(grades):
    weights = np.linspace(3, 1, grades)
    return weights / weights.sum()


def _site_record(answers, grades, synthetic, noise, level):
    probabilities, labels, u = answers["probabilities"], answers["labels"], answers["uncertainty"]
    predicted = probabilities.argmax(1)
    task = referral(probabilities, labels, answers["referable"].tolist(), -1)
    auc = macro_auc(probabilities, labels).value
    return {
        "grades": grades,
        "images": {"train": 160, "val": 40, "test": int(labels.size)},
        "fingerprint": "0" * 8,
        "synthetic": synthetic,
        "theta": 0.4,
        "weight": 0.5,
        "test": {
            "auc": auc,
            "auc_logits": auc,
            "accuracy": accuracy(predicted, labels),
            "kappa": quadratic_kappa(predicted, labels),
            "ece": ece(probabilities, labels),
            "brier": brier(probabilities, labels),
            "nll": nll(probabilities, labels),
            "error_auroc": error_detection_auroc(u, predicted != labels),
            "aurc": aurc(u, predicted != labels),
            "referable_auc": None if task is None else auroc(task.score, task.diseased),
        },
        "noise": [
            {"variance": v, "auc": None if auc is None else 0.5 + (auc - 0.5) * np.exp(-8 * v * level)}
            for v in (0.0, 0.02, 0.1)
        ]
        if noise
        else [],
        "theta_by_round": [0.3, 0.35, 0.4, 0.45],
        "weight_by_round": [0.5, 0.5, 0.5, 0.5],
    }
