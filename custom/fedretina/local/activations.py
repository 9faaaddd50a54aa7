"""What FedAP compares: mean and variance of what enters each BatchNorm of the encoder, over a site's images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedretina.exchange.parts import MEAN, STATISTIC, VARIANCE


def activation_statistics(encoder: nn.Module, batches: Iterable[Tensor], run: Any) -> dict[str, Tensor]:
    """Gather mean and variance a channel of the input of each BatchNorm, pooled over all images and places.

    The network stands in evaluation mode, so that a batch does not normalise the next layer's input by itself.
    Sums are float64: the variance is a difference of large numbers.

    Args:
        encoder: The network's encoder.
        batches: Images [B, 3, S, S].
        run: Sends a batch through the network.

    Returns:
        By key `statistic:LAYER.mean` and `statistic:LAYER.variance`, float32 [C].
    """
    layers = {name: module for name, module in encoder.named_modules() if isinstance(module, _BatchNorm)}
    sums: dict[str, list[Any]] = {name: [0.0, 0.0, 0] for name in layers}

    def listen(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            wide = inputs[0].detach().double()
            places = [axis for axis in range(wide.dim()) if axis != 1]
            entry = sums[name]
            entry[0] = entry[0] + wide.sum(places).cpu()
            entry[1] = entry[1] + wide.square().sum(places).cpu()
            entry[2] += wide.numel() // wide.shape[1]

        return hook

    hooks = [module.register_forward_pre_hook(listen(name)) for name, module in layers.items()]
    try:
        with torch.inference_mode():
            for images in batches:
                run(images)
    finally:
        for hook in hooks:
            hook.remove()
    found: dict[str, Tensor] = {}
    for name, (total, squares, count) in sums.items():
        mean = total / count
        found[f"{STATISTIC}encoder.{name}{MEAN}"] = mean.float()
        found[f"{STATISTIC}encoder.{name}{VARIANCE}"] = (squares / count - mean.square()).clamp(min=0).float()
    return found
