"""Heads that begin as probes: fitted on what the network makes of a site's own images before anything is trained.

Kumar et al. (ICLR 2022): a head that starts at random first spoils the features that it is fine-tuned with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedretina.analytic.layer import RidgeLayer, ridge_layer
from fedretina.losses.objective import Clock, Objective
from fedretina.networks.network import Network

_SCALES, _SHIFTS = (0.5, 200.0), (-50.0, 50.0)
_FIRST_SCALE = 10.0
_log = logging.getLogger(__name__)


def fitted_heads(
    net: Network, batches: Iterable[Tensor], labels: Tensor, objective: Objective, clock: Clock
) -> dict[str, Tensor]:
    """Fit the last layer of the head and of each early exit, all else of the network standing still.

    Each is a ridge regression on what enters the layer (`analytic.layer`), of the strength with the least squared
    leave-one-out error. Its scores lie near 0 to 1; one scale and one shift, the same for all outputs, make them into
    the logits that the run's objective likes best on the images left out, so that evidence begins where the errors are.

    Args:
        net: The network as the site's first round receives it; its head is one linear layer.
        batches: What the network takes of the training images, in order.
        labels: int64 [n] of the same images.
        objective: The run's.
        clock: The first step of the training.

    Returns:
        New weights and biases by key of the network's state, float32 on the CPU.

    Raises:
        DataError: A feature is not finite.
    """
    last = {"head.0": net.head.get_submodule("0")}
    for number in range(0 if net.exits is None else len(net.exits)):
        last[f"exits.{number}.2"] = net.get_submodule(f"exits.{number}.2")
    entered: dict[str, list[Tensor]] = {name: [] for name in last}

    def listen(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            entered[name].append(inputs[0].detach().float().cpu())

        return hook

    hooks = [layer.register_forward_pre_hook(listen(name)) for name, layer in last.items()]
    try:
        net.eval()
        with torch.inference_mode():
            for batch in batches:
                net(batch)
    finally:
        for hook in hooks:
            hook.remove()
    found: dict[str, Tensor] = {}
    for name, layer in last.items():
        fitted = ridge_layer(torch.cat(entered[name]), labels, int(layer.get_parameter("bias").numel()))
        scale, shift = _logits_of(fitted, labels, objective, clock)
        right = float((fitted.left_out.argmax(1) == labels).double().mean())
        said = "%s fitted: strength %.3g, scale %.3g, shift %.3g, right when left out: %.3f"
        _log.info(said, name, fitted.strength, scale, shift, right)
        found[f"{name}.weight"] = (scale * fitted.weight).float()
        found[f"{name}.bias"] = (scale * fitted.bias + shift).float()
    return found


def _logits_of(fitted: RidgeLayer, labels: Tensor, objective: Objective, clock: Clock) -> tuple[float, float]:
    """Scale and shift under which the objective is least on the scores of images left out."""
    from scipy.optimize import minimize  # takes half a second, and most runs fit nothing

    def loss(point: Any) -> float:
        logits = fitted.left_out * float(np.exp(point[0])) + float(point[1])
        return float(objective.score(logits, labels, clock))

    low, high = (float(np.log(limit)) for limit in _SCALES)
    with torch.no_grad():
        best = minimize(loss, (float(np.log(_FIRST_SCALE)), 0.0), method="Nelder-Mead", bounds=((low, high), _SHIFTS))
    return float(np.exp(best.x[0])), float(best.x[1])
