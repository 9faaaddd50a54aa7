"""MobileNetV2 as an encoder in eight stages."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from torch import nn

from fedretina.networks.encoder import Encoder, encoder
from fedretina.networks.layout import IMAGENET, TORCHVISION_LICENCE, Layout, published
from fedretina.networks.timm_blocks import TimmBlocks
from fedretina.settings.encoder import MobileNetV2Traits

_WIDTHS = (32, 16, 24, 32, 64, 96, 160, 1280)


@encoder(MobileNetV2Traits)
def mobilenet_v2_encoder() -> Encoder:
    """Return an untrained MobileNetV2 encoder (F = 1280, 2.2 million weights).

    A stage for the stem and one for each width of the inverted residuals, so that an early exit can stand after any of
    them; the 1280 channels of the top end the last one. Sides after the stages: 1/2, 1/2, 1/4, 1/8, 1/16, 1/16, 1/32,
    1/32 of the image's.

    Source: Sandler et al., CVPR 2018; the layers are torchvision's. Its classifier is left out, and with it the dropout
    before it, which draws from torch's global generator: a round could then not be repeated bit for bit. Nothing is
    downloaded. The start is drawn from torch's generator; `build_network` seeds it.
    """
    from torchvision.models import mobilenet_v2

    stem, *blocks, top = mobilenet_v2(weights=None).features
    stages = [list(same) for _, same in groupby(blocks, key=lambda block: block.out_channels)]
    stages[-1].append(top)
    return Encoder([stem, *(nn.Sequential(*stage) for stage in stages)], _WIDTHS)


@published(MobileNetV2Traits)
class TorchvisionMobileNet(Layout):
    """torchvision's keys (`features.1.conv.0.0.weight`, ...)."""

    title = "torchvision"
    pretrained_on = IMAGENET
    licence = TORCHVISION_LICENCE
    marks = ("features.0.0.weight", "features.1.conv.0.0.weight")
    dropped = ("classifier",)

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        stages = enumerate(encoder.stages)
        blocks = [f"stages.{i}.{name}" for i, stage in stages if i for name, _ in stage.named_children()]
        return {f"features.{number}": home for number, home in enumerate(["stages.0", *blocks])}


@published(MobileNetV2Traits)
class TimmMobileNet(TimmBlocks):
    """timm's `mobilenetv2_100`."""

    theirs = "mobilenetv2_100"
