"""Images a second that train from real input, against synthetic input that lies on the device already."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.corrections.correction import LocalRound
from fedretina.data.site_data import SiteData, Split
from fedretina.local.supervised import EpochContext, labelled_epochs
from fedretina.local.trainer import LocalTrainer
from fedretina.losses.objective import build_objective
from fedretina.seeds import reproducible_torch
from fedretina.settings.plan import Plan
from fedretina.storage import write_json
from fedretina.version import versions
from fedretina_papers.one_run import machine
from fedretina_papers.paper_size.plan import PaperSizePlan

SPEED = "speed.json"
TARGET = 0.9
"""Real input over synthetic input: below it, the card waits for images."""
Inputs = Callable[[NDArray[np.int64], tuple[int | str, ...]], torch.Tensor]


def measure_speed(plan: PaperSizePlan, name: str, sites: Mapping[str, SiteData], out: Path) -> str:
    """Time the local epochs of a part's reference, with both kinds of input in turn, and store the figures.

    Both run the very same epochs: network, precision, objective, optimiser, batches. Real input is read from the image
    cache, brought to the device as bytes and transformed there; synthetic input is one batch of drawn pixels that was
    there before. The images are of the site that trains on most.

    Args:
        plan: The plan.
        name: Of the part.
        sites: Its sites.
        out: Folder of the benchmark; the part's folder gets `speed.json`.

    Returns:
        What came out, in words.
    """
    bench = plan.benches[name]
    experiment = bench.experiment_of(bench.choice(bench.reference), plan.seeds[0], {})
    step = next(one for one in Plan.of(experiment) if one.task == "train")
    phase = experiment.phase(step.phase)
    data = max(sites.values(), key=lambda one: (one.counts["train"], one.name))
    trainer = LocalTrainer(experiment, data)
    settings = phase.training or experiment.training
    few = _first(data.split("train"), plan.speed.steps * settings.batch_size)
    settings = settings.model_copy(
        update={"epochs": 1, "stretches": (), "batch_size": min(settings.batch_size, len(few.labels))}
    )
    whole = len(few.labels) - len(few.labels) % settings.batch_size  # the last batch is whole, or left out

    def images_a_second(inputs: Inputs, turn: int) -> float:
        context = EpochContext(step, settings, inputs, (experiment.seed, "speed", turn))
        began = time.perf_counter()
        labelled_epochs(trainer.model, objective, few, LocalRound(), context, lambda: False)  # ends on the CPU
        return whole / (time.perf_counter() - began)

    with reproducible_torch(settings):
        objective = build_objective(experiment.objective)
        kinds = {
            "real": trainer.inputs(few, phase.augment or experiment.augment),
            "synthetic": _synthetic(trainer, few, settings.batch_size),
        }
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        for turn in range(1 + plan.speed.turns):
            for kind, inputs in kinds.items():
                speed = images_a_second(inputs, turn)
                found[kind] += [speed] if turn else []  # the first of each warms up
    ratio = median(real / drawn for real, drawn in zip(found["real"], found["synthetic"], strict=True))
    record = {
        **found,
        "ratio": ratio,
        "encoder": experiment.network.encoder,
        "image_size": data.split("train").images.shape[-1],
        "batch_size": settings.batch_size,
        "precision": settings.precision,
        "images": whole,
        "site": data.name,
        "synthetic_site": data.synthetic,
        "machine": machine(),
        "versions": versions(),
    }
    write_json(out / name / SPEED, record)
    return (
        f"{name}: {median(found['real']):.0f} images/s of real input, {median(found['synthetic']):.0f} of synthetic, "
        f"ratio {ratio:.2f}"
    )


def _synthetic(trainer: LocalTrainer, few: Split, batch: int) -> Inputs:
    """One batch of drawn pixels, in the network's own layout, on its device."""
    ready = trainer.model.to_device(torch.rand(batch, *few.images.shape[1:]))
    return lambda order, purpose: iter([ready] * len(order))


def _first(split: Split, most: int) -> Split:
    """The first images of a split, which lie side by side in the cache as all of them do."""
    return Split(split.images[:most], split.labels[:most], split.patients[:most], split.files[:most])
