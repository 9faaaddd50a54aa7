"""Parameters and arithmetic of a network, counted without running it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from fedretina.errors import SettingsError


class ForwardCost(NamedTuple):
    """What a network holds, and what one image costs.

    Attributes:
        parameters: Trainable numbers; running statistics are not among them.
        buffers: Other numbers of the state, such as running statistics.
        multiply_adds: Multiply-adds (MACs) of the forward pass of one image. This is what papers on vision networks
            print as "FLOPs", the OCT and FedEE papers among them: ResNet-50 at 224 px has 4.09 G.
        flops: Floating point operations, a multiply and an add counted apart: twice the multiply-adds.
    """

    parameters: int
    buffers: int
    multiply_adds: int
    flops: int


def forward_cost(net: nn.Module, side: int | tuple[int, int], channels: int = 3) -> ForwardCost:
    """Count parameters, and the arithmetic of one image in evaluation mode.

    Counted are convolutions, matrix products and attention, as torch's counter knows them; normalisation, activations
    and pooling are not, which is the custom of published figures and some per cent of the whole. Nothing is computed:
    the pass runs on the meta device, whatever device the weights are on, so that EfficientNet-B4 takes a fifth of a
    second and no memory.

    Args:
        net: Any network of images; its mode and weights are left as they are.
        side: Height and width of the image, in px; one number for a square.
        channels: Channels of the image.

    Raises:
        SettingsError: side or channels is below 1.
    """
    from torch.utils.flop_counter import FlopCounterMode

    height, width = (side, side) if isinstance(side, int) else side
    if min(height, width, channels) < 1:
        raise SettingsError(f"an image of {channels} channels and {side} px was asked for: use 1 or more of both.")
    named = [*net.named_parameters(), *net.named_buffers()]
    state = {name: torch.empty_like(value, device="meta") for name, value in named}
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            image = torch.empty(1, channels, height, width, device="meta")
            torch.func.functional_call(net, state, (image,))
    finally:
        for module, mode in modes.items():
            module.training = mode
    flops = int(counter.get_total_flops())
    return ForwardCost(
        parameters=sum(one.numel() for one in net.parameters()),
        buffers=sum(one.numel() for one in net.state_dict().values()) - sum(one.numel() for one in net.parameters()),
        multiply_adds=flops // 2,
        flops=flops,
    )
