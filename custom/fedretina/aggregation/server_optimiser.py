"""The server's optimiser: how far the model goes from the last aggregate towards what the sites sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedretina.corrections.correction import MEMORY, ServerRound
from fedretina.exchange.payload import Tensors
from fedretina.parts import Register
from fedretina.settings.aggregation import (
    FedAdamSettings,
    FedAvgMSettings,
    NoServerOptimiserSettings,
    ServerOptimiserSettings,
)

server_optimiser: Register[Callable[[ServerRound, Any], Tensors]] = Register("fedretina.aggregation.server_optimiser")
"""Registers the function below it as the server's optimiser of some settings.

It is given the round with the sites' combined values (`mixed`) and what was sent (`received`), and returns the next
aggregate with what it keeps under `memory:` keys, which stand in the model's own file: a run that is taken up goes on
with them, and one that goes back to a step finds those of that step. It moves parameters alone (`parameters`):
BatchNorm's running statistics stay the mean that they are, for a longer step could make a variance negative.
"""


def stepping(settings: ServerOptimiserSettings) -> Callable[[ServerRound], Tensors]:
    """The chosen optimiser.

    Raises:
        SettingsError: None is registered for the settings.
    """
    chosen = server_optimiser.of(settings)
    return lambda round_: chosen(round_, settings)


@server_optimiser(NoServerOptimiserSettings)
def taken_as_it_is(round_: ServerRound, settings: NoServerOptimiserSettings) -> Tensors:
    """What the sites' values combine to is the next model: FedAvg."""
    return round_.mixed


@server_optimiser(FedAvgMSettings)
def fedavgm(round_: ServerRound, settings: FedAvgMSettings) -> Tensors:
    """FedAvgM (Hsu, Qi, Brown 2019): v = beta v + d, w += eta v, with d = x - w_t and v = 0 at first.

    w_t is what was sent, x what the sites' values combine to. The paper writes d with the other sign and subtracts, and
    has eta = 1; eta is the server's rate of Reddi et al. (ICLR 2021).
    """

    def step(key: str, start: Tensor, way: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        velocity = settings.momentum * _kept(round_, "velocity", key) + way
        return start + settings.rate * velocity, {"velocity": velocity}

    return _each_parameter(round_, step)


@server_optimiser(FedAdamSettings)
def fedadam(round_: ServerRound, settings: FedAdamSettings) -> Tensors:
    """FedAdam (Reddi et al., ICLR 2021, Algorithm 2).

    m = beta_1 m + (1 - beta_1) d, v = beta_2 v + (1 - beta_2) d^2, w += eta m / (sqrt(v) + tau), with d = x - w_t,
    m = 0 and v = tau^2 at first. As there, neither moment is corrected for its start.
    """

    def step(key: str, start: Tensor, way: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        first = settings.beta_1 * _kept(round_, "first", key) + (1 - settings.beta_1) * way
        second = settings.beta_2 * _kept(round_, "second", key, settings.tau**2) + (1 - settings.beta_2) * way.square()
        return start + settings.rate * first / (second.sqrt() + settings.tau), {"first": first, "second": second}

    return _each_parameter(round_, step)


def _kept(round_: ServerRound, name: str, key: str, start: float = 0.0) -> Tensor:
    """What the server remembers of a parameter, in float64; `start` at first."""
    known = f"{MEMORY}{name}:{key}" in round_.received
    return round_.kept(name, key).double() if known else torch.full_like(round_.received[key], start).double()


def _each_parameter(
    round_: ServerRound, step: Callable[[str, Tensor, Tensor], tuple[Tensor, Mapping[str, Tensor]]]
) -> dict[str, Tensor]:
    """Move each parameter in float64, and store it and its memories in the parameter's type; all else is the mean."""
    after = dict(round_.mixed)
    for key in round_.parameters:
        start = round_.received[key]
        moved, memories = step(key, start.double(), round_.mixed[key].double() - start.double())
        after[key] = moved.to(start.dtype)
        after.update({f"{MEMORY}{name}:{key}": value.to(start.dtype) for name, value in memories.items()})
    return after
