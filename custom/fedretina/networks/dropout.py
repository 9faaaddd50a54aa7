"""Dropout after stages of an encoder: in training as ever, in passes that answer one drawn network per pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedretina.networks.encoder import Encoder
from fedretina.seeds import derive_seed


class PassDropout(nn.Module):
    """Dropout that is plain dropout in training, nothing in evaluation, and a fixed mask in a numbered pass.

    In pass t all images meet the same mask, drawn from t and the layer alone. So a pass is one network out of those
    that dropout trains, and the answer to an image does not depend on the batch, the folder or the machine that it is
    read in; the official code draws a mask per sample from a generator that it sets anew for each batch.

    Attributes:
        passing: Number t of the pass, or None outside one.

    Args:
        rate: Share of values that are dropped.
        layer: Number of the layer, part of the seed of its masks.
    """

    def __init__(self, rate: float, layer: int) -> None:
        super().__init__()
        self.rate = rate
        self.layer = layer
        self.passing: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return `[B, ...]` with values dropped, the rest scaled up by 1 / (1 - rate)."""
        if self.passing is None:
            return F.dropout(x, self.rate, self.training)
        rng = torch.Generator().manual_seed(derive_seed("dropout", self.layer, self.passing) % 2**63)
        kept = torch.rand(x.shape[1:], generator=rng) >= self.rate
        return x * (kept.to(x.device) / (1 - self.rate))


def answered_in_passes(net: nn.Module, images: Tensor, passes: int) -> Tensor:
    """Ask a network several times, with another drawn network each time (MC-dropout).

    Args:
        net: A network in evaluation mode, with `PassDropout` layers.
        images: `[B, 3, H, W]` in [0, 1].
        passes: T, 1 or more; 1 asks once, without dropout.

    Returns:
        Logits `[B, K]` for one pass, `[B, T, K]` for more; early exits are members like any other.
    """
    if passes == 1:
        found: Tensor = net(images)
        return found
    layers = [layer for layer in net.modules() if isinstance(layer, PassDropout)]
    answers = []
    try:
        for number in range(passes):
            for layer in layers:
                layer.passing = number
            one = net(images)
            answers.append(one if one.ndim == 3 else one[:, None])
    finally:
        for layer in layers:
            layer.passing = None
    return torch.cat(answers, 1)


class Answered(NamedTuple):
    """What a network says of images, and what it saw of them on the way.

    Attributes:
        logits: As `answered_in_passes` gives them.
        features: What entered the head, float32 [B, F].
        middle: The average of the map of the encoder's middle stage (`Encoder.middle`), float32 [B, C]; None where it
            has none.
    """

    logits: Tensor
    features: Tensor
    middle: Tensor | None


def answered_with_features(net: nn.Module, images: Tensor, passes: int) -> Answered:
    """Ask a network as `answered_in_passes` does, and note what a gate looks at: one pass serves both.

    Args:
        net: A network in evaluation mode, with a `head`.
        images: What it takes.
        passes: As `answered_in_passes`.

    Returns:
        The logits, with the same bits, and what was seen; the mean over the passes.
    """
    head, encoder = net.head, getattr(net, "encoder", None)
    assert isinstance(head, nn.Module)
    seen: list[Tensor] = []
    early: list[Tensor] = []
    handles = [head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach().float()))]
    if isinstance(encoder, Encoder) and encoder.middle is not None:
        # What enters the stage after it: the stage itself may be frozen, and its output come from a cache.
        after = encoder.stages[encoder.middle + 1]
        handles.append(
            after.register_forward_pre_hook(
                lambda module, inputs: early.append(encoder.average(inputs[0].detach()).float())
            )
        )
    try:
        logits = answered_in_passes(net, images, passes)
    finally:
        for handle in handles:
            handle.remove()
    return Answered(logits, _mean(seen), _mean(early) if early else None)


def _mean(passes: list[Tensor]) -> Tensor:
    return torch.stack(passes).mean(0) if len(passes) > 1 else passes[0]
