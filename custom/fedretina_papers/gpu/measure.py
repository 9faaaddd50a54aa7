"""What is measured of a work: speed, share of the card's arithmetic, bits; alone, and beside others on the card."""

from __future__ import annotations

import time
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.cache import PixelArrayWriter, map_pixels
from fedretina.data.site_data import SiteData, Split, load_site_data
from fedretina.errors import TrainingError
from fedretina.local.gpu import take_gpu
from fedretina.local.trainer import LocalTrainer
from fedretina.networks.build import build_on_meta
from fedretina.seeds import reproducible_torch, torch_device
from fedretina.settings.experiment import Experiment
from fedretina.settings.gpu import GpuSettings
from fedretina.settings.site import SiteDataSettings
from fedretina_papers.costs.forward_cost import forward_cost
from fedretina_papers.gpu.plan import GpuPlan, Work
from fedretina_papers.input_speed import Epochs, first, input_speed

_SITE = "site-1"
_PASSES = 3  # a step's arithmetic over its forward pass's: gradients of weights, and of what enters each layer, beside
_WAIT_S = 300.0
_OF_CARD = 0.9  # what sites share of the card; the rest is CUDA's own, for each process
Record = dict[str, Any]


def site_with_cache(plan: GpuPlan, cache: Path) -> tuple[SiteData, Split]:
    """A phantom hospital, and its images over and over in a file like an image cache's, as long as a site's own is.

    Args:
        plan: The plan.
        cache: Folder of the file, which is written where it is missing.
    """
    experiment = plan.experiment_of(plan.works()[0])
    settings = SiteDataSettings(phantom_images=experiment.phantom_images or 160)
    data = load_site_data(_SITE, settings, experiment.images, experiment.seed, cache)
    sample = experiment.images.shape
    file = cache / f"images-{plan.images}-{'x'.join(str(side) for side in sample)}.npy"
    if not file.exists():
        drawn = data.split("train").images.numpy()
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = file.with_suffix(".tmp")
        with open(unfinished, "wb") as handle:
            writer = PixelArrayWriter(handle, plan.images, sample)
            for place in range(plan.images):
                writer.add(drawn[place % len(drawn)])
            writer.finish()
        unfinished.replace(file)
    map_pixels(file, plan.images, sample)  # refuses a file that is none of it
    pixels = torch.from_numpy(np.load(file, mmap_mode="c"))
    names = tuple(str(place) for place in range(plan.images))
    grades = torch.arange(plan.images) % data.scheme.num_classes  # which ones they are changes no time
    return data, Split(pixels, grades, names, names)


def measure(plan: GpuPlan, work: Work, cache: Path) -> Record:
    """What a work says.

    Args:
        plan: The plan.
        work: Which of its works.
        cache: Folder of the images.

    Raises:
        TrainingError: One of several sites ended without an answer.
    """
    if work.sites:
        return _together(plan, work, cache)
    epochs = _epochs(plan, work, cache)
    bits = _bits(plan, work, epochs, cache)  # from the seed's start, before anything else has trained
    found = input_speed(epochs, plan.turns)
    experiment = plan.experiment_of(work)
    flops = _PASSES * _flops(experiment)
    ceiling = matrix_rate(experiment)
    return {
        **found._asdict(),
        "ratio": found.ratio,
        "flops_an_image": flops,
        "ceiling_flops_s": ceiling,
        "mfu": median(found.real) * flops / ceiling,
        **bits,
    }


def _epochs(plan: GpuPlan, work: Work, cache: Path) -> Epochs:
    experiment, (data, split) = plan.experiment_of(work), site_with_cache(plan, cache)
    return Epochs(LocalTrainer(experiment, data), experiment, first(split, plan.steps * experiment.training.batch_size))


def _flops(experiment: Experiment) -> int:
    _, height, width = experiment.images.shape
    return forward_cost(build_on_meta(experiment.network, experiment.head_width or 2), (height, width)).flops


def matrix_rate(experiment: Experiment) -> float:
    """Floating point operations a second of a large matrix product in the training's precision: the most there is.

    Against a measured rate, and not that of a data sheet, a share means the same on every card, and on a processor.
    """
    settings = experiment.training
    device = torch_device(settings)
    side, repeats = (8192, 10) if device.type == "cuda" else (512, 3)
    kind = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    with reproducible_torch(settings):
        one, other = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
        for _ in range(3):
            one @ other
        _wait(device)
        began = time.perf_counter()
        for _ in range(repeats):
            one @ other
        _wait(device)
        return repeats * 2 * side**3 / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _bits(plan: GpuPlan, work: Work, epochs: Epochs, cache: Path) -> Record:
    """Whether an epoch gives the same bits twice, and how far it leads from one under the plan's first settings.

    The distance is that of the ways which both have gone, over the length of the first settings' way.
    """
    net = epochs.trainer.model.net
    start, begun = _weights(epochs), {key: value.clone() for key, value in net.state_dict().items()}
    ends = []
    for _ in range(2):
        net.load_state_dict(begun)
        epochs.train(epochs.real, 0)
        ends.append(_weights(epochs))
    plain = work._replace(precision=plan.precisions[0], kernels=plan.kernels[0])
    reference = ends[0]
    if plain != work:
        other = _epochs(plan, plain, cache)
        other.train(other.real, 0)
        reference = _weights(other)
    return {
        "same_bits": bool(np.array_equal(ends[0], ends[1])),
        "distance": float(np.linalg.norm(ends[0] - reference) / np.linalg.norm(reference - start)),
    }


def _weights(epochs: Epochs) -> NDArray[np.float64]:
    parameters = epochs.trainer.model.net.parameters()
    return np.concatenate([one.detach().cpu().double().numpy().ravel() for one in parameters])


def _together(plan: GpuPlan, work: Work, cache: Path) -> Record:
    """Sites that train at the same moment on one card, each in a process of its own with its part of the memory."""
    site_with_cache(plan, cache)  # so that none of them writes it
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # of what was measured before
    context = get_context("spawn")  # a fork of a process that has used CUDA cannot use it
    start, answers = context.Barrier(work.sites), context.SimpleQueue()
    sites = [
        context.Process(target=_one_of_them, args=(plan.model_dump(mode="json"), work, cache, start, answers))
        for _ in range(work.sites)
    ]
    for site in sites:
        site.start()
    for site in sites:
        site.join()
    told = []
    while not answers.empty():
        told.append(answers.get())
    if len(told) < work.sites:
        codes = sorted({site.exitcode for site in sites if site.exitcode})
        raise TrainingError(f"of {work.sites} sites on the card {len(told)} ended well; the others' code is {codes}.")
    return {
        "images_s": sum(images for images, _, _ in told) / max(seconds for _, seconds, _ in told),
        "memory_bytes": max(memory for _, _, memory in told),
    }


def _one_of_them(
    plan: Mapping[str, Any], work: Work, cache: Path, start: Barrier, answers: SimpleQueue[tuple[int, float, int]]
) -> None:
    """Train beside the others: images, seconds, and most memory that torch took."""
    read = GpuPlan.read(plan)
    experiment = read.experiment_of(work)
    try:
        take_gpu(GpuSettings(memory_share=_OF_CARD / work.sites), experiment.training)
        epochs = _epochs(read, work, cache)
        epochs.train(epochs.real, 0)  # warms up
        start.wait(_WAIT_S)
        seconds = sum(epochs.train(epochs.real, turn) for turn in range(1, 1 + read.turns))
    except BaseException:
        start.abort()  # else the others would wait for one that does not come
        raise
    card = torch_device(experiment.training).type == "cuda"
    answers.put((read.turns * epochs.images, seconds, torch.cuda.max_memory_allocated() if card else 0))
