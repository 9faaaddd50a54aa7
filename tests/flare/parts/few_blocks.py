"""EfficientNet-Lite0's own blocks, but few and narrow: 14 convolutions for 49, 17,000 weights for 3.4 million.

A part of another package (docs/add_a_method.md), so that all of FLARE's processes know it by its name: most of what a
tiny run costs beside its processes goes by the size of its network, in training, on the wire and on disk. What the
tests of FLARE look at does not.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn

from fedretina.networks.efficientnet_lite import ConvNorm, InvertedResidual
from fedretina.networks.encoder import Encoder, encoder
from fedretina.settings.encoder import EncoderTraits


class FewBlocksTraits(EncoderTraits):
    """A stem and five blocks in five stages."""

    exits: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    name: Literal["few_blocks"] = "few_blocks"


@encoder(FewBlocksTraits)
def few_blocks_encoder() -> Encoder:
    """Five stages; the second has a shortcut."""
    stages = (
        (ConvNorm(3, 32, 3, 2), InvertedResidual(32, 16, 3, 1, 1)),
        (InvertedResidual(16, 24, 3, 2, 1), InvertedResidual(24, 24, 3, 1, 1)),
        (InvertedResidual(24, 40, 5, 2, 2),),
        (InvertedResidual(40, 112, 3, 2, 1),),
        (InvertedResidual(112, 16, 3, 1, 1), ConvNorm(16, 32, 1)),
    )
    return Encoder([nn.Sequential(*stage) for stage in stages], (16, 24, 40, 112, 32))
