"""What frozen stages save: images a second that fill their cache, and a round with it, without it, and none frozen."""

from __future__ import annotations

import gc
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import Result, result
from fedretina.data.augment import orientations
from fedretina.data.feature_cache import FeaturePlace
from fedretina.data.site_data import load_site_data
from fedretina.local.features import FrozenOutputs
from fedretina.local.model import LocalModel
from fedretina.local.trainer import LocalTrainer
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan
from fedretina.settings.site import SiteDataSettings

_THREADS = 1
_BATCH = 32
_IMAGES = {64: 480, 224: 96}
_FROZEN: tuple[int | str, ...] = (3, "all")
_TURNS = 5
_ROOM = 10**11


def measure(scratch: Path, quick: bool = False) -> Result:
    """Fill the cache and time three kinds of round in turn, for every size and number of frozen stages.

    Args:
        scratch: For the cache.
        quick: Two batches, one turn and one case.
    """
    sizes = {32: 64} if quick else _IMAGES
    cases = {
        f"EfficientNet-Lite0, {size} px, frozen: {frozen}": _case(scratch, size, images, frozen, quick)
        for size, images in sizes.items()
        for frozen in (_FROZEN[:1] if quick else _FROZEN)
    }
    return result(
        "Frozen stages",
        "Images a second that pass the frozen stages into an empty cache, mirror images among them, and seconds of "
        "`LocalTrainer.train`, one epoch of FedAvg with its head, with the cache, without it (the frozen stages run "
        "anew for every batch) and with nothing frozen. Rounds are taken in turn; a ratio belongs to one turn.",
        cases,
        [],
        {
            "torch threads": _THREADS,
            "batch size": _BATCH,
            "images a round": ", ".join(f"{images} at {size} px" for size, images in sizes.items()),
            "random transforms": "mirror left and right: each image is kept twice",
            "data": "phantom hospital site-1",
        },
        [
            "With and without the cache a round ends with the same bits; with nothing frozen it ends elsewhere.",
            "The rows lie in the page cache, as they do at a site whose memory holds them.",
        ],
    )


def _case(scratch: Path, size: int, images: int, frozen: int | str, quick: bool) -> dict[str, list[float]]:
    kept, anew = _experiment(size, frozen=frozen), _experiment(size, frozen=frozen, frozen_cache="off")
    data = load_site_data("site-1", SiteDataSettings(phantom_images=images), kept.images, 1, scratch / "cache")
    data = replace(data, features=FeaturePlace(scratch / "features", "phantoms", None, _ROOM))
    split = data.split("train")
    turns = 2 if quick else 1 + _TURNS
    filled = []
    for turn in range(turns):
        shutil.rmtree(scratch / "features", ignore_errors=True)
        outputs = FrozenOutputs(LocalModel(kept, data.grading).net, kept, data)
        lie = orientations(kept.augment)
        seconds = _timed(lambda outputs=outputs, lie=lie: outputs.of(split, lie))
        if turn > 0:  # the first turn warms up kernels
            filled.append(len(split.labels) * len(lie) / seconds)
    rounds = {"with the cache": kept, "without": anew, "nothing frozen": _experiment(size)}
    trainers = {name: LocalTrainer(experiment, data) for name, experiment in rounds.items()}
    found: dict[str, list[float]] = {name: [] for name in rounds}
    for turn in range(turns):
        for name in sorted(rounds, reverse=turn % 2 == 0):  # none always follows another
            trainer, step = trainers[name], Plan.of(rounds[name])[0]
            shared = {key: trainer.model.net.state_dict()[key].clone() for key in trainer.partition.shared}
            gc.collect()
            seconds = _timed(lambda t=trainer, s=shared, p=step: t.train(s, t.initial(), p))
            if turn > 0:
                found[name].append(seconds)
    others = ("without", "nothing frozen")
    best = found["with the cache"]
    ratios = {f"{other} / with the cache": [a / b for a, b in zip(found[other], best, strict=True)] for other in others}
    return {"filled, images/s": filled, **ratios, **{f"{name}, s": values for name, values in found.items()}}


def _experiment(size: int, **network: Any) -> Experiment:
    return Experiment.resolve(
        {
            "row": "fedavg",
            "grades": 5,
            "exchange": {"personal": "nothing"},
            "network": {"encoder": "efficientnet_lite0", **network},
            "images": {"image_size": size},
            "augment": {"rotate_degrees": 0},
            "training": {"threads": _THREADS, "batch_size": _BATCH, "device": "cpu"},
        }
    )


def _timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
