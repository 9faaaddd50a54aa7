"""MobileNetV2 as an encoder in eight stages."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from torch import Tensor, nn

from fedretina.networks.encoder import Encoder

_WIDTHS = (32, 16, 24, 32, 64, 96, 160, 1280)


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


def load_mobilenet_state(encoder: Encoder, state: Mapping[str, Tensor]) -> None:
    """Load a `state_dict` with torchvision's keys (`features.1.conv.0.0.weight`, ...) into our stages.

    The classifier is dropped; every other key must find its place.

    Args:
        encoder: The result of `mobilenet_v2_encoder`.
        state: The published state.

    Raises:
        SettingsError: A key is missing or left over, a shape differs, or a value is not finite.
    """
    blocks = [f"stages.{i}.{name}" for i, stage in enumerate(encoder.stages) if i for name, _ in stage.named_children()]
    homes = {f"features.{number}": home for number, home in enumerate(["stages.0", *blocks])}
    encoder.load_renamed(state, homes, "classifier")
