"""Runs as the OCT tables need them, with answers whose quality is known."""

from __future__ import annotations

import numpy as np

from fedretina.exchange.moved import Moved
from fedretina.seeds import generator
from fedretina_papers.costs.forward_cost import ForwardCost
from fedretina_papers.oct_runs import OctRun, RoundNote, SiteAnswers

CLASSES = ("CNV", "DME", "DRUSEN", "NORMAL")
B4 = ForwardCost(17_555_788, 125_000, 4_390_000_000, 8_780_000_000)


def made_site(name, seed, origin, quality, n=60, classes=CLASSES, trained=True):
    rng = generator("site", name, seed, origin)
    labels = rng.integers(0, len(classes), n)
    odds = np.exp(quality * np.eye(len(classes))[labels] + rng.normal(size=(n, len(classes))))
    return SiteAnswers(
        origin, classes, labels, odds / odds.sum(1, keepdims=True), [f"{origin}-{at // 2}" for at in range(n)], trained
    )


def made_run(name, seed=1, quality=2.0, clients=3, sites=None, controls=True, **words):
    given = sites or {
        **{f"kermany-{at}": made_site(f"{name}-{at}", seed, "kermany", quality) for at in range(clients)},
        "duke": made_site(name, seed, "duke", quality, n=40),
        "octid": made_site(name, seed, "octid", quality - 1, 30, ("NORMAL", "AMD"), trained=False),
    }
    trained = sum(site.trained for site in given.values())
    each = 10_000_000 * (2 if controls else 1) * trained
    history = [RoundNote("pretrain", 3.0 - 0.5 * at, None) for at in range(3)]
    history += [RoundNote("train", 1.0 - 0.2 * at, 0.5 + 0.2 * at + 0.001 * seed) for at in range(3)]
    base = {
        "name": name,
        "seed": seed,
        "title": name.replace("_", " "),
        "encoder": "efficientnet_b4",
        "classes": CLASSES,
        "sites": given,
        "moved": {"pretrain": Moved(3 * each, 3 * each), "train": Moved(3 * each, 3 * each)},
        "history": tuple(history),
        "cost": B4,
        "inference_s": 0.038,
        "memory_bytes": 3.7e9,
        "seconds": 360.0,
    }
    return OctRun(**{**base, **words})
