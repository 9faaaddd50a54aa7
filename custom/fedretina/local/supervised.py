"""The local epochs of a round that trains with labels, and in which order the images come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.corrections.correction import Correction, LocalRound, RoundContext
from fedretina.data.site_data import Split
from fedretina.errors import DivergedError, StoppedError, TrainingError
from fedretina.exchange.payload import Tensors
from fedretina.local.model import LocalModel
from fedretina.local.optimiser import RoundOptimiser
from fedretina.local.training import seed_layers
from fedretina.losses.objective import Clock, Objective, summed_score
from fedretina.networks.network import Network
from fedretina.seeds import generator
from fedretina.settings.plan import Step
from fedretina.settings.training import StretchSettings, TrainingSettings


class Predictions(NamedTuple):
    """Logits and labels of the same samples, on the CPU.

    Attributes:
        logits: float32 [N, K], or [N, M, K] of a network with several answers, the final head's last.
        labels: int64 [N].
    """

    logits: torch.Tensor
    labels: torch.Tensor


class EpochResult(NamedTuple):
    """What a round of epochs saw.

    Attributes:
        answers: Those of its last epoch, while it learned.
        losses: The loss of every batch.
        memory: What the optimiser keeps for the next round.
    """

    answers: Predictions
    losses: list[float]
    memory: Tensors


class EpochContext(NamedTuple):
    """What decides the epochs beside model, data and objective.

    Attributes:
        step: Which round of which phase.
        settings: Optimiser, batches, stretches.
        inputs: Gives what the network is to see of images in an epoch, by their numbers and what the draws are for.
        purpose: What the draws are for: seed, site, phase and round.
        memory: What the optimiser kept of the last round.
    """

    step: Step
    settings: TrainingSettings
    inputs: Callable[[NDArray[np.int64], tuple[int | str, ...]], torch.Tensor]
    purpose: tuple[int | str, ...]
    memory: Tensors = MappingProxyType({})


@contextmanager
def correction_scope(correction: Correction, context: RoundContext) -> Iterator[LocalRound]:
    """A correction's round at a site; whatever happens, it lets go of the network, and all of it may train again."""
    round_ = correction.begin(context)
    try:
        yield round_
    finally:
        round_.close()
        context.net.requires_grad_(True)


def labelled_epochs(
    model: LocalModel,
    objective: Objective,
    split: Split,
    correction: LocalRound,
    context: EpochContext,
    stop: Callable[[], bool],
) -> EpochResult:
    """Train a loaded model on a split.

    Raises:
        StoppedError: `stop` said so.
        DivergedError: A loss that is not finite.
    """
    step, settings = context.step, context.settings
    optimiser = RoundOptimiser(model.net, settings)
    optimiser.recall(context.memory)
    losses: list[float] = []
    logits_seen: list[torch.Tensor] = []
    labels_seen: list[torch.Tensor] = []
    # A round may have stages, first the head alone and then all of it; what follows sees only a list of epochs.
    epochs = [stretch for stretch in settings.resolved_stretches() for _ in range(stretch.epochs)]
    for epoch, stretch in enumerate(epochs):
        _only(model.net, stretch)
        purpose = (*context.purpose, epoch)
        # Order, augmentation and dropout are drawn for this epoch by name: a round that is begun again gives the same
        # bits, whatever ran in this process before.
        order = list(batches(len(split.labels), settings, purpose))
        seed_layers(model.device, (*purpose, "dropout"))
        logits_seen, labels_seen = [], []  # of the last epoch only: theta may be read from them
        for number, samples in enumerate(order):
            if stop():
                raise StoppedError(f"the run was aborted in {step.name}.")
            seen = model.to_device(context.inputs(samples, (*purpose, "augment")))
            labels = split.labels[samples].to(model.device)
            clock = Clock(step.round, step.rounds, epoch, len(epochs), number, len(order))
            with torch.autocast(model.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                logits = model.net(seen)
                loss = summed_score(objective, logits, labels, clock)
                penalty = correction.penalty(seen)
            # The loss is noted without the correction's penalty, and looked at before it can spoil the weights.
            losses.append(finite(loss, clock, step))
            optimiser.step(loss if penalty is None else loss + penalty, correction, clock)
            logits_seen.append(logits.detach())
            labels_seen.append(labels)
    answers = Predictions(torch.cat(logits_seen).float().cpu(), torch.cat(labels_seen).cpu())
    return EpochResult(answers, losses, optimiser.memory())


def finite(loss: torch.Tensor, clock: Clock, step: Step) -> float:
    """The value of a batch's loss.

    Raises:
        DivergedError: It is not finite.
    """
    value = loss.item()
    if not math.isfinite(value):
        raise DivergedError(
            f"the loss became {value} in {step.name}, epoch {clock.epoch}: "
            "lower training.learning_rate; nothing of this round is kept."
        ).with_note(f"It was batch {clock.step} of the epoch, from 0.")
    return value


def _only(net: Network, stretch: StretchSettings) -> None:
    """Let a part of the network train and hold the rest still; contrast layers rest where there are labels."""
    for name, part in net.named_children():
        trains = stretch.train == "all" or (stretch.train == "encoder") == (name == "encoder")
        trains = trains and name != "contrast"
        part.train(trains)
        part.requires_grad_(trains)


def batches(images: int, settings: TrainingSettings, purpose: tuple[int | str, ...]) -> Iterator[NDArray[np.int64]]:
    """Numbers of the images of each batch of an epoch, in an order that the purpose decides.

    Args:
        images: How many images there are.
        settings: Size of a batch, and whether the last one must be full.
        purpose: What the order is for, such as (seed, site, phase, round, epoch).
    """
    size = settings.batch_size
    order = generator(*purpose, "order").permutation(images)
    for begin in range(0, images, size):
        samples = order[begin : begin + size]
        # A batch of one has no variance for BatchNorm, so it is left out even when drop_last is off.
        if len(samples) == size or (not settings.drop_last and len(samples) > 1):
            yield samples


def batches_an_epoch(images: int, batch_size: int, drop_last: bool) -> int:
    """How many batches `batches` gives."""
    whole, rest = divmod(images, batch_size)
    return whole + (not drop_last and rest > 1)


def require_a_batch(images: int, settings: TrainingSettings, what: str = "training images") -> None:
    """Refuse fewer images than a batch.

    Raises:
        TrainingError: There are fewer.
    """
    if images < settings.batch_size:
        raise TrainingError(
            f"the site's {what} are fewer than one batch of {settings.batch_size}: "
            "lower training.batch_size or let the site add images."
        ).with_note(f"There are {images} {what}.")
