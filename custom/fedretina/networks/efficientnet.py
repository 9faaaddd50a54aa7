"""EfficientNet-B0 and EfficientNet-B4 as encoders in eight stages."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fedretina.networks.encoder import Encoder, encoder
from fedretina.networks.layout import IMAGENET, TORCHVISION_LICENCE, Layout, published
from fedretina.networks.timm_blocks import TimmBlocks
from fedretina.settings.encoder import EfficientNetB0Traits, EfficientNetB4Traits


@encoder(EfficientNetB0Traits)
def efficientnet_b0_encoder() -> Encoder:
    """Return an untrained EfficientNet-B0 encoder (F = 1280, 4.0 million weights), FedEE's for skin images.

    A stage for the stem and one for each width of the MBConv blocks; the 1280 channels of the top end the last one.
    Stages 3, 4, 5 and 6 (widths 40, 80, 112, 192) end with MBConv blocks 4, 7, 10 and 14, counted from 0: there FedEE
    has its early exits. Sides after the stages: 1/2, 1/2, 1/4, 1/8, 1/16, 1/16, 1/32, 1/32 of the image's.

    Source: Tan and Le, ICML 2019; the layers are torchvision's, with BatchNorm's eps and momentum at torch's defaults.
    One difference: no stochastic depth in the blocks and no dropout before the classifier, which is left out. Both draw
    from torch's global generator, which nothing here seeds: a round could not be repeated bit for bit. Nothing is
    downloaded. The start is drawn from torch's generator; `build_network` seeds it.
    """
    from torchvision.models import efficientnet_b0

    net = efficientnet_b0(weights=None, stochastic_depth_prob=0.0)
    return _in_stages(net, (32, 16, 24, 40, 80, 112, 192, 1280))


@encoder(EfficientNetB4Traits)
def efficientnet_b4_encoder() -> Encoder:
    """Return an untrained EfficientNet-B4 encoder (F = 1792, 17.5 million weights), that of the OCT paper.

    The same stages, layers and omissions as `efficientnet_b0_encoder`; wider, and 32 MBConv blocks instead of 16.
    """
    from torchvision.models import efficientnet_b4

    net = efficientnet_b4(weights=None, stochastic_depth_prob=0.0)
    return _in_stages(net, (48, 24, 32, 56, 112, 160, 272, 1792))


def _in_stages(net: nn.Module, widths: tuple[int, ...]) -> Encoder:
    """Re-home the layers of a torchvision EfficientNet.

    No key of them contains "bn", so a choice by name would share all BatchNorm: "FedBN" would be FedAvg.
    `exchange.partition` goes by module.
    """
    *stages, last, top = net.get_submodule("features").children()
    return Encoder([*stages, nn.Sequential(*last.children(), top)], widths)


@published(EfficientNetB0Traits, EfficientNetB4Traits)
class TorchvisionEfficientNet(Layout):
    """torchvision's keys (`features.1.0.block.0.0.weight`, ...)."""

    title = "torchvision"
    pretrained_on = IMAGENET
    licence = TORCHVISION_LICENCE
    marks = ("features.0.0.weight", "features.1.0.block.0.0.weight")
    dropped = ("classifier",)

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        last = len(encoder.stages) - 1
        top = len(list(encoder.stages[last].children())) - 1
        homes = {f"features.{i}": f"stages.{i}" for i in range(last + 1)}
        return {**homes, f"features.{last + 1}": f"stages.{last}.{top}"}


@published(EfficientNetB0Traits)
class TimmEfficientNetB0(TimmBlocks):
    """timm's `efficientnet_b0`."""

    theirs = "efficientnet_b0"
    twin = "tf_efficientnet_b0"


@published(EfficientNetB4Traits)
class TimmEfficientNetB4(TimmBlocks):
    """timm's `efficientnet_b4`."""

    theirs = "efficientnet_b4"
    twin = "tf_efficientnet_b4"
