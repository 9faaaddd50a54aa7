"""timm's names for networks whose layers stand elsewhere here: torchvision's, or timm's in stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedretina.networks.encoder import Encoder
from fedretina.networks.layout import IMAGENET, Fitted, Layout


class TimmBlocks(Layout):
    """timm's keys (`conv_stem.weight`, `blocks.1.0.conv_pw.weight`, ...) for the same layers in the same order.

    Both sides list their layers in the order of the computation, so the n-th of one is the n-th of the other.

    Attributes:
        theirs: timm's name of the network.
        twin: Another of timm's with the same keys and shapes whose layers are padded otherwise; None for none.
    """

    title = "timm"
    pretrained_on = IMAGENET
    licence = "Apache-2.0 as a rule; see the card that the file came with"
    marks = ("conv_stem.weight", "blocks.0.0.conv_dw.weight")
    dropped = ("classifier",)
    theirs: ClassVar[str]
    twin: ClassVar[str | None] = None

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`; builds timm's network without memory."""
        from timm.models import efficientnet

        with torch.device("meta"):
            net = getattr(efficientnet, self.theirs)(pretrained=False, num_classes=0)
        return dict(zip(_layers(net), _layers(encoder), strict=True))

    def prepare(self, encoder: Encoder, state: Mapping[str, Tensor]) -> Fitted:
        """See `Layout.prepare`."""
        if self.twin is None:
            return Fitted(dict(state))
        told = f"it must be timm's {self.theirs}: {self.twin} has the same keys and other padding, and no key tells"
        return Fitted(dict(state), notes=(told,))


def _layers(net: nn.Module) -> Iterator[str]:
    """Names of the modules that hold tensors themselves."""
    for name, module in net.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            yield name
