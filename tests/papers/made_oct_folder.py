"""A folder of an OCT benchmark as the runner leaves it, with answers whose quality is known."""

from __future__ import annotations

import numpy as np

from fedretina.seeds import generator
from fedretina.storage import write_json

CLASSES = ("normal", "drusen", "dme", "cnv")
SETS = {"site-1": "scanner_a", "site-2": "scanner_a", "site-4": "scanner_b"}
COSTS = {"parameters": 3_400_000, "buffers": 42_000, "multiply_adds": 33_000_000, "flops": 66_000_000}


def write_oct(out, rows, seeds=(1, 2), run=None, untrained=(), outside=True, **plan):
    """Write plan, records, answers and costs; `untrained` sites took no part in training of any row."""
    write_json(
        out / "plan.json",
        {
            "name": "oct",
            "paper": "oct",
            "reference": "oct_moco_scaffold",
            "rows": list(rows),
            "seeds": list(seeds),
            "sites": list(SETS),
            "sets": SETS,
            "splits": "given",
            "strangers": ["unseen"] if outside else [],
            "target": 0.7,
            "tuning": {},
            **plan,
        },
    )
    for at, name in enumerate(rows if run is None else run):
        write_json(out / "costs" / f"{name}.json", {**COSTS, "seconds": 0.004, "memory_bytes": 5e8})
        for seed in seeds:
            _write_run(out, name, seed, 2.0 - 0.5 * at, untrained, outside)


def site_answers(name, seed, site, quality, n=40):
    labels = generator("oct", site).integers(0, len(CLASSES), n)
    rng = generator("oct", name, seed, site)
    odds = np.exp(quality * np.eye(len(CLASSES))[labels] + rng.normal(size=(n, len(CLASSES))))
    probabilities = odds / odds.sum(1, keepdims=True)
    return {
        "probabilities": probabilities,
        "uncertainty": 1 - probabilities.max(1),
        "labels": labels,
        "patients": np.array([f"{site}-{k // 2}" for k in range(n)]),
        "scores": probabilities,
        "referable": np.array([2, 3]),
        "ungradable": np.int64(-1),
    }


def _write_run(out, name, seed, quality, untrained, outside):
    two = "moco" in name or "simclr" in name
    sites = {}
    for site in SETS:
        answers = site_answers(name, seed, site, quality)
        folder = out / "answers" / name / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{site}.npz", **answers)
        right = float(np.mean(answers["probabilities"].argmax(1) == answers["labels"]))
        unlike = {"auroc": 0.5 + 0.1 * quality, "aupr": 0.6, "fpr95": 0.8, "outside": 12}
        sites[site] = {
            "grades": 4,
            "grade_names": list(CLASSES),
            "images": {"train": 100, "val": 20, "test": 40},
            "synthetic": True,
            "trained": site not in untrained,
            "labelled": 100.0,
            "test": {"auc": 0.5 + 0.1 * quality, "accuracy": right},
            "noise": [],
        }
        if outside:
            sites[site]["strangers"] = {
                "unseen": {**unlike, "synthetic": False, "diseases": {"erm": unlike | {"auroc": 0.9}}}
            }
    pretrain = [{"phase": "pretrain", "loss": 3.0 - at, "accuracy": None} for at in range(2)]
    training = {"epochs": 1, "optimizer": "adam", "learning_rate": 0.001, "batch_size": 8}
    phase = {"name": "train", "rounds": 2, "training": training, "label_share": 1.0}
    write_json(
        out / "results" / name / f"seed-{seed}.json",
        {
            "name": name,
            "row": name,
            "title": name.replace("_", " "),
            "paper": "",
            "seed": seed,
            "loop_only": False,
            "seconds": 12.0,
            "passes": 4.0,
            "bytes_up": 400,
            "bytes_down": 600,
            "moved": {**({"pretrain": {"up": 100, "down": 100}} if two else {}), "train": {"up": 300, "down": 500}},
            "history": [
                *(pretrain if two else []),
                *({"phase": "train", "loss": 1.0 - 0.2 * at, "accuracy": 0.6 + 0.2 * at} for at in range(2)),
            ],
            "classes": list(CLASSES) if name != "oct_centralised" else None,
            "rounds": 2,
            "chosen": "train-0001",
            "settings": {
                "network": {"encoder": "efficientnet_lite0", "weights": {"source": "none"}},
                "images": {"image_size": 32},
                "training": training,
                "phases": [phase],
            },
            "versions": {"fedretina": "0.1"},
            "machine": {"cores": 2, "processor": "made", "memory_gib": 8, "gpu": None},
            "tuned": {},
            "validation": {},
            "sites": sites,
        },
    )
