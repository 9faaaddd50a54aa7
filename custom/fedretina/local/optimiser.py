"""The optimiser of a round, its rate by round, and a rate of its own for the encoder."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from fedretina.corrections.correction import LocalRound
from fedretina.exchange.payload import Tensors
from fedretina.losses.objective import Clock
from fedretina.settings.training import OptimiserSettings

MEMORY = "optimizer:"
"""Prefix of what an optimiser keeps at a site."""


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
        self.torch: torch.optim.Optimizer
        if settings.optimizer == "adam":
            self.torch = EagerAdam(used, lr=rate, weight_decay=decay)
        else:
            self.torch = EagerSGD(used, lr=rate, momentum=settings.momentum, weight_decay=decay)

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
            f"{MEMORY}{what}:{key}": torch.as_tensor(value).detach().cpu().clone()
            for parameter, key in self._names.items()
            for what, value in self.torch.state.get(parameter, {}).items()
            if value is not None
        }

    def recall(self, memory: Tensors) -> None:
        """Go on from what `memory` gave; other entries are not read, and parameters without any begin anew."""
        if self._settings.optimizer_state == "reset":
            return
        homes = {key: parameter for parameter, key in self._names.items()}
        for name, value in memory.items():
            what, _, key = name.removeprefix(MEMORY).partition(":")
            if name.startswith(MEMORY) and key in homes:
                known = self.torch.state[homes[key]]
                # Adam counts its steps on the CPU; its moments lie where the parameter does.
                known[what] = value.clone() if value.ndim == 0 else value.to(homes[key], copy=True)

    def clip(self) -> None:
        """Shorten the gradient where it is longer than the settings allow."""
        if self._settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.clip_norm)


class EagerSGD(torch.optim.SGD):
    """`torch.optim.SGD`, to be stepped by `eager_step`."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, without the wrapper that keeps it out of compiled graphs."""
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)


class EagerAdam(torch.optim.Adam):
    """`torch.optim.Adam`, to be stepped by `eager_step`."""

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
