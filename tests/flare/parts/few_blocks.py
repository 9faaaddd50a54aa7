"""EfficientNet-Lite0's own blocks, but few and narrow.

A part of another package (docs/add_a_method.md), so that all of FLARE's processes know it by its name: most of what a
tiny run costs beside its processes goes by the size of its network, in training, on the wire and on disk. What the
tests of FLARE look at does not.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from little_lite0 import little_lite0

from fedretina.networks.efficientnet_lite import EfficientNetLite
from fedretina.networks.encoder import Encoder, encoder
from fedretina.settings.encoder import EncoderTraits


class FewBlocksTraits(EncoderTraits):
    """Five stages."""

    exits: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    name: Literal["few_blocks"] = "few_blocks"


@encoder(FewBlocksTraits)
def few_blocks_encoder() -> Encoder:
    """The widths of Lite0's stages, but for the last."""
    return EfficientNetLite(little_lite0())
