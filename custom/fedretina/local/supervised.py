"""The local epochs of a round that trains with labels: in which order the images come, and the optimiser's steps."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedretina.corrections.correction import Correction, LocalRound, RoundContext
from fedretina.data.site_data import Split
from fedretina.errors import DivergedError, StoppedError, TrainingError
from fedretina.exchange.payload import Tensors
from fedretina.local.model import LocalModel
from fedretina.losses.objective import Clock, Objective
from fedretina.networks.network import Network
from fedretina.seeds import generator, seed_layers
from fedretina.settings.plan import Step
from fedretina.settings.training import OptimiserSettings, StretchSettings, TrainingSettings

_FUSED = ("cuda",)
OPTIMISER = "optimizer:"
"""Prefix of what an optimiser keeps at a site."""


class Predictions(NamedTuple):
    """Logits and labels of the same samples, on the CPU.

    Attributes:
        logits: float32 [N, K], or [N, M, K] of a network with several answers, the final head's last.
        labels: int64 [N].
        features: What entered the head, float32 [N, F]; None where nobody noted it.
        middle: See `Answered.middle`; None where there is none, or nobody noted it.
    """

    logits: Tensor
    labels: Tensor
    features: Tensor | None = None
    middle: Tensor | None = None


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


Inputs = Callable[[Sequence[NDArray[np.int64]], tuple[int | str, ...]], Iterator[Tensor]]
"""What a network sees in an epoch, batch after batch: takes which images each has, and what the draws are for."""


class EpochContext(NamedTuple):
    """What decides the epochs beside model, data and objective.

    Attributes:
        step: Which round of which phase.
        settings: Optimiser, batches, stretches.
        inputs: Gives what the network is to see of images in an epoch.
        purpose: What the draws are for: seed, site, phase and round.
        memory: What the optimiser kept of the last round.
    """

    step: Step
    settings: TrainingSettings
    inputs: Inputs
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
    losses = BatchLosses(model.device, step)
    logits_seen: list[Tensor] = []
    labels_seen: list[Tensor] = []
    # A round may have stages, first the head alone and then all of it; what follows sees only a list of epochs.
    stretches = settings.stretches or (StretchSettings(epochs=settings.epochs),)
    epochs = [stretch for stretch in stretches for _ in range(stretch.epochs)]
    for epoch, stretch in enumerate(epochs):
        _only(model.net, stretch)
        purpose = (*context.purpose, epoch)
        # Order, augmentation and dropout are drawn for this epoch by name: a round that is begun again gives the same
        # bits, whatever ran in this process before.
        order = list(batches(len(split.labels), settings, purpose))
        seed_layers(model.device, (*purpose, "dropout"))
        logits_seen, labels_seen = [], []  # of the last epoch only: theta may be read from them
        inputs = context.inputs(order, (*purpose, "augment"))
        for number, (samples, given) in enumerate(zip(order, inputs, strict=True)):
            if stop():
                raise StoppedError(f"the run was aborted in {step.name}.")
            seen = model.to_device(given)
            labels = model.brought(split.labels[samples])
            clock = Clock(step.round, step.rounds, epoch, len(epochs), number, len(order))
            with torch.autocast(model.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                logits = model.net(seen)
                loss = summed_score(objective, logits, labels, clock)
                penalty = correction.penalty(seen)
            losses.note(loss, clock)  # without the correction's penalty
            optimiser.step(loss if penalty is None else loss + penalty, correction, clock)
            logits_seen.append(logits.detach())
            labels_seen.append(labels)
        losses.settle()
    answers = Predictions(torch.cat(logits_seen).float().cpu(), torch.cat(labels_seen).cpu())
    return EpochResult(answers, losses.values, optimiser.memory())


def summed_score(scores: Objective, logits: Tensor, labels: Tensor, clock: Clock) -> Tensor:
    """Score what a network answers: one head, or the sum over early exits and the final head (FedEE, Eq. 6).

    Every exit weighs 1, the final head included, as in the official code; the paper allows weights in [0, 1].

    Args:
        scores: Scores each answer by itself.
        logits: [B, K], or [B, M, K] with the final head last.
        labels: As for `Objective.score`.
        clock: As for `Objective.score`.

    Returns:
        A scalar with gradient, float32.
    """
    if logits.ndim == 2:
        return scores.score(logits, labels, clock)
    return torch.stack([scores.score(one, labels, clock) for one in logits.unbind(1)]).sum()


class BatchLosses:
    """The losses of a round's batches, each of which must be finite.

    On the CPU a loss is looked at before it can spoil the weights. To read it off a card would make each batch wait for
    the one before, so there all of an epoch are looked at together, when it ends: a round that diverged computes on to
    there, and nothing of it is kept either way.

    Args:
        device: Where the losses are.
        step: Of the run, for the words of an error.

    Attributes:
        values: The losses that were looked at, in order.
    """

    def __init__(self, device: torch.device, step: Step) -> None:
        self._at_once = device.type == "cpu"
        self._step = step
        self._noted: list[tuple[Tensor, Clock]] = []
        self.values: list[float] = []

    def note(self, loss: Tensor, clock: Clock) -> None:
        """Add the loss of a batch, a scalar.

        Raises:
            DivergedError: It is not finite, and on the CPU.
        """
        self._noted.append((loss.detach(), clock))
        if self._at_once:
            self.settle()

    def settle(self) -> None:
        """Look at what was noted; to be called when an epoch ends.

        Raises:
            DivergedError: The first that is not finite.
        """
        if not self._noted:
            return
        values: list[float] = torch.stack([loss for loss, _ in self._noted]).tolist()
        for value, (_, clock) in zip(values, self._noted, strict=True):
            if not math.isfinite(value):
                raise DivergedError(
                    f"the loss became {value} in {self._step.name}, epoch {clock.epoch}: "
                    "lower training.learning_rate; nothing of this round is kept."
                ).with_note(f"It was batch {clock.step} of the epoch, from 0.")
        self.values += values
        self._noted = []


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


def scheduled(settings: OptimiserSettings, clock: Clock) -> float:
    """The rate at a step of the phase, before the encoder's factor."""
    if settings.schedule == "cosine":
        done = clock.round + (clock.epoch + clock.step / clock.steps) / clock.epochs
        return settings.learning_rate * (1 + math.cos(math.pi * done / clock.rounds)) / 2
    if settings.schedule == "exponential":
        return settings.learning_rate * settings.decay**clock.round
    return settings.learning_rate


class RoundOptimiser:
    """A round's optimiser over the parameters that train.

    Args:
        net: The network; parts other than its `encoder` train at the full rate.
        settings: The settings.
    """

    def __init__(self, net: nn.Module, settings: OptimiserSettings) -> None:
        self._settings = settings
        named = [(key, value) for key, value in net.named_parameters() if value.requires_grad]
        encoder = [(key, value) for key, value in named if key.startswith("encoder.")]
        rest = [(key, value) for key, value in named if not key.startswith("encoder.")]
        self._parameters: list[Tensor] = [value for _, value in named]
        self._names = {value: key for key, value in named}
        # torch refuses a group without parameters.
        pairs = [pair for pair in ((encoder, settings.encoder_factor), (rest, 1.0)) if pair[0]]
        self._keys = [([key for key, _ in group], factor) for group, factor in pairs]
        used = [{"params": [value for _, value in group]} for group, _ in pairs]
        rate, decay = settings.learning_rate, settings.weight_decay
        # One kernel for all parameters in place of several for each; on the CPU its bits would be others than before.
        self._fused = all(value.device.type in _FUSED for value in self._parameters)
        self.torch: EagerAdam | EagerSGD
        if settings.optimizer == "adam":
            self.torch = EagerAdam(used, lr=rate, weight_decay=decay, fused=self._fused)
        else:
            self.torch = EagerSGD(used, lr=rate, momentum=settings.momentum, weight_decay=decay, fused=self._fused)

    def at(self, clock: Clock) -> dict[str, float]:
        """Set the rates of a step and return them by key of the parameter."""
        base = scheduled(self._settings, clock)
        rates: dict[str, float] = {}
        for group, (keys, factor) in zip(self.torch.param_groups, self._keys, strict=True):
            group["lr"] = base * factor
            rates.update(dict.fromkeys(keys, group["lr"]))
        return rates

    def step(self, loss: Tensor, correction: LocalRound, clock: Clock) -> None:
        """Move the weights down the gradient of a batch's loss, as the correction would have it.

        Args:
            loss: A scalar with gradient, the correction's penalty in it.
            correction: Changes the gradient before the step, and the weights after it.
            clock: Where training stands.
        """
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        rates = self.at(clock)
        correction.adjust(rates)
        self.clip()
        eager_step(self.torch)
        correction.stepped(rates)

    def memory(self) -> Tensors:
        """What the optimiser knows of each parameter, by names of its own; nothing where it begins anew each round."""
        if self._settings.optimizer_state == "reset":
            return {}
        return {
            f"{OPTIMISER}{what}:{key}": torch.as_tensor(value).detach().cpu().clone()
            for parameter, key in self._names.items()
            for what, value in self.torch.state.get(parameter, {}).items()
            if value is not None
        }

    def recall(self, memory: Tensors) -> None:
        """Go on from what `memory` gave; parameters without any begin anew.

        Other entries are not read, nor those of another optimiser, as an earlier phase had it.
        """
        if self._settings.optimizer_state == "reset":
            return
        homes = {key: parameter for parameter, key in self._names.items()}
        for name, value in memory.items():
            what, _, key = name.removeprefix(OPTIMISER).partition(":")
            if name.startswith(OPTIMISER) and key in homes and what in self.torch.knows:
                known = self.torch.state[homes[key]]
                known[what] = self._at_home(value, homes[key])

    def _at_home(self, value: Tensor, parameter: Tensor) -> Tensor:
        """A copy of what was kept of a parameter, where its optimiser wants it."""
        if value.ndim == 0:  # Adam counts its steps on the CPU, unless it is fused
            return value.to(parameter.device if self._fused else value.device, copy=True)
        # A fused step takes only what is laid out as the parameter is.
        return torch.empty_like(parameter).copy_(value) if self._fused else value.to(parameter, copy=True)

    def clip(self) -> None:
        """Shorten the gradient where it is longer than the settings allow."""
        if self._settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.clip_norm)


class EagerSGD(torch.optim.SGD):
    """`torch.optim.SGD`, to be stepped by `eager_step`.

    Attributes:
        knows: Names of what it keeps of a parameter.
    """

    knows: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, without the wrapper that keeps it out of compiled graphs."""
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)


class EagerAdam(torch.optim.Adam):
    """`torch.optim.Adam`, to be stepped by `eager_step`.

    Attributes:
        knows: Names of what it keeps of a parameter.
    """

    knows: ClassVar[tuple[str, ...]] = ("step", "exp_avg", "exp_avg_sq")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, without the wrapper that keeps it out of compiled graphs."""
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)


def eager_step(optimiser: torch.optim.Optimizer) -> None:
    """Step as `optimiser.step()` does, to the last bit, where nothing is compiled.

    Args:
        optimiser: One that is not differentiable; its hooks are not called.
    """
    with torch.no_grad():
        inspect.unwrap(type(optimiser).step)(optimiser)
