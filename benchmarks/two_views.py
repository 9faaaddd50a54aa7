"""Images a second of the two random views of contrastive training, beside a training step and MONAI's transforms."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.common import Result, result, target
from fedretina.data.augment import two_views
from fedretina.data.phantoms.draw import cases_of, phantom_images
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.networks.build import build_network
from fedretina.settings.experiment import Experiment
from fedretina.settings.images import TwoViewSettings

_TARGET = 10.0
_THREADS = 1
_BATCH = 32
_PASSES = {64: 20, 128: 5}  # of ours that are timed as one, by size: a single one would be too short
_PAIRS = 9


def measure(scratch: Path, quick: bool = False) -> Result:
    """Time the views, a training step and MONAI's transforms in turn, at every size.

    Args:
        scratch: Not used.
        quick: One size, two pairs.
    """
    torch.set_num_threads(_THREADS)
    sizes = list(_PASSES)[:1] if quick else list(_PASSES)
    return result(
        "Two views",
        "Images a second that become two float views each (crop, rotation, mirror, brightness, contrast, blur, "
        "speckle), against those of a ResNet-18 training step that is given ready batches of one view: forward, "
        "backward, SGD. MONAI's RandAffine, RandFlip, RandAdjustContrast and RandGaussianSmooth, image by image on the "
        "same channel, stand beside them. All are taken in turn; a ratio belongs to one turn.",
        {f"ResNet-18, {size} px": _case(size, 2 if quick else _PAIRS) for size in sizes},
        [target("two views / step", "at least", _TARGET)],
        {"torch threads": _THREADS, "batch size": _BATCH, "data": "phantom OCT scans of site-1"},
        ["A contrastive step passes both views through a network, so it costs more than the step of one view here."],
    )


def _case(size: int, pairs: int) -> dict[str, list[float]]:
    images = phantom_images(
        phantom_hospital("site-1", modality="oct"), cases_of(np.arange(_BATCH) % 4), size, (1, "benchmark")
    )
    samples = np.arange(_BATCH)
    loops: dict[str, tuple[Callable[[], object], int]] = {
        "two views": (lambda: two_views(images, samples, TwoViewSettings(), (1,), True), _PASSES[size]),
        "two views, colour": (lambda: two_views(images, samples, TwoViewSettings(), (1,), False), _PASSES[size]),
        "step": (_step(images, size), 1),
        "MONAI": (_monai(images, size), 1),
    }
    speed: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(1 + pairs):
        for name, (loop, passes) in loops.items():
            began = time.perf_counter()
            for _ in range(passes):
                loop()
            if turn > 0:  # the first turn warms up caches and kernels
                speed[name].append(_BATCH * passes / (time.perf_counter() - began))
    compared = (("two views", "step"), ("two views, colour", "step"), ("two views", "MONAI"))
    ratios = {f"{a} / {b}": [x / y for x, y in zip(speed[a], speed[b], strict=True)] for a, b in compared}
    return {**ratios, **{f"{name}, images/s": values for name, values in speed.items()}}


def _step(images: torch.Tensor, size: int) -> Callable[[], None]:
    experiment = Experiment.resolve({"network": {"encoder": "resnet18"}, "images": {"image_size": size}})
    net = build_network(experiment.network, 4, 1).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-3)
    labels = torch.arange(len(images)) % 4
    ready = images.float().div_(255).to(memory_format=torch.channels_last)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(net(ready), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def _monai(images: torch.Tensor, size: int) -> Callable[[], object]:
    from monai.transforms import Compose, RandAdjustContrast, RandAffine, RandFlip, RandGaussianSmooth

    settings = TwoViewSettings()
    least, most = (limit * size / 224 for limit in settings.blur_sigma)
    angle, shift, sigma = math.radians(settings.rotate_degrees), size / 5, (least, most)
    transforms = Compose(
        [
            RandAffine(1.0, rotate_range=angle, scale_range=(0.3, 0.3), translate_range=(shift, shift)),
            RandFlip(0.5, spatial_axis=1),
            RandAdjustContrast(settings.colour_probability, gamma=(0.6, 1.4)),
            RandGaussianSmooth(sigma_x=sigma, sigma_y=sigma, prob=settings.blur_probability),
        ]
    ).set_random_state(1)

    def views() -> list[torch.Tensor]:
        pixels = images[:, :1].float().div_(255)
        return [torch.stack([transforms(image) for image in pixels]) for _ in range(2)]

    return views
