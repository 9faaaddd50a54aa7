"""Images a second of a site's round of training, beside a bare PyTorch loop on the same tensors."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import Result, result, target
from fedretina.data.augment import augment
from fedretina.data.site_data import Split, load_site_data
from fedretina.local.trainer import LocalTrainer
from fedretina.losses.objective import Clock, build_objective
from fedretina.networks.build import build_network
from fedretina.networks.network import Network
from fedretina.seeds import reproducible_torch
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan
from fedretina.settings.site import SiteDataSettings

_TARGET = 0.97
_THREADS = 1
_BATCH = 32
_IMAGES = {64: 960, 128: 480}
_ENCODERS = {"resnet18": "ResNet-18", "efficientnet_lite0": "EfficientNet-Lite0"}
_PAIRS = 9
_LEAST_PAIRS = 3
_BUDGET_S = 240.0  # a case; it stops after the pair in which it is spent


def measure(scratch: Path, quick: bool = False) -> Result:
    """Time the two loops in turn for every encoder and size.

    Args:
        scratch: For the data's cache; phantoms need none.
        quick: Two batches, one pair and one encoder.
    """
    sizes = {32: 64} if quick else _IMAGES
    encoders = list(_ENCODERS)[:1] if quick else list(_ENCODERS)
    cases = {
        f"{_ENCODERS[encoder]}, {size} px": _case(scratch, encoder, size, images, quick)
        for encoder in encoders
        for size, images in sizes.items()
    }
    return result(
        "Local training",
        "Images in a CPU second of `LocalTrainer.train`, one epoch of FedUAA with its theta, its checks and its "
        "copies of the weights, against a bare PyTorch loop on the same uint8 tensors in memory: same network, loss, "
        "batch size, SGD, memory layout and augmentation. Pairs are taken in turn; a ratio belongs to one pair.",
        cases,
        [target("ours / bare loop", "at least", _TARGET)],
        {
            "torch threads": _THREADS,
            "batch size": _BATCH,
            "images a round": ", ".join(f"{images} at {size} px" for size, images in sizes.items()),
            "data": "phantom hospital site-1",
        },
        [
            "Both loops compute in one thread and wait for nothing, so CPU time is their time; that of the clock also "
            "counts what a virtual machine's neighbours take.",
            "What a round costs once (weights in and out, theta) weighs more in a shorter round, so the images a round "
            "belong to the figure.",
        ],
    )


def _case(scratch: Path, encoder: str, size: int, images: int, quick: bool) -> dict[str, list[float]]:
    words = {
        "network": {"encoder": encoder},
        "images": {"image_size": size},
        "training": {"threads": _THREADS, "batch_size": _BATCH, "device": "cpu"},
    }
    experiment = Experiment.resolve(words)
    data = load_site_data("site-1", SiteDataSettings(phantom_images=images), experiment.images, 1, scratch / "cache")
    split = data.split("train")
    trainer = LocalTrainer(experiment, data)
    net = build_network(experiment.network, data.scheme.num_classes, experiment.seed)
    start = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    net.to(memory_format=torch.channels_last)
    shared = {key: start[key] for key in trainer.partition.shared}
    step = Plan.of(experiment)[0]

    def ours() -> None:
        trainer.train(shared, trainer.initial(), step)

    loops: dict[str, Callable[[], None]] = {
        "ours": ours,
        "bare loop": lambda: _bare(experiment, net, split),
    }
    speed: dict[str, list[float]] = {name: [] for name in loops}
    trained = len(split.labels) // _BATCH * _BATCH
    began = time.perf_counter()
    for turn in range(2 if quick else 1 + _PAIRS):
        for name in sorted(loops, reverse=turn % 2 == 0):  # neither always follows the other
            loop = loops[name]
            net.load_state_dict(start)  # equal numbers cost equal time, so no loop trains on from another
            gc.collect()
            seconds = _timed(loop)
            if turn > 0:  # the first turn warms up caches and kernels
                speed[name].append(trained / seconds)
        if turn >= _LEAST_PAIRS and time.perf_counter() - began > _BUDGET_S:
            break
    ratios = [a / b for a, b in zip(speed["ours"], speed["bare loop"], strict=True)]
    return {"ours / bare loop": ratios, **{f"{name}, images/s": values for name, values in speed.items()}}


def _bare(experiment: Experiment, net: Network, split: Split) -> None:
    """Train one epoch with what PyTorch needs and nothing else."""
    settings = experiment.training
    objective = build_objective(experiment.objective)
    with reproducible_torch(settings):  # for the threads
        net.train()
        optimiser = torch.optim.SGD(net.parameters(), lr=settings.learning_rate)
        order = np.random.default_rng(1).permutation(len(split.labels))
        steps = len(order) // settings.batch_size
        for number in range(steps):
            samples = order[number * settings.batch_size : (number + 1) * settings.batch_size]
            chosen = split.images[samples]
            images = augment(chosen, samples, experiment.augment, (1,))
            logits = net(images.to(memory_format=torch.channels_last))
            loss = objective.score(logits, split.labels[samples], Clock(0, 5, 0, 1, number, steps))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def _timed(loop: Callable[[], None]) -> float:
    began = time.process_time()
    loop()
    return time.process_time() - began
