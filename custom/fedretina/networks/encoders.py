"""The table of encoders: how each is built, and which published weights fit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from fedretina.networks.efficientnet import efficientnet_b0_encoder, efficientnet_b4_encoder, load_efficientnet_state
from fedretina.networks.efficientnet_lite import efficientnet_lite0_encoder, load_lite0_state
from fedretina.networks.encoder import Encoder
from fedretina.networks.mobilenet import load_mobilenet_state, mobilenet_v2_encoder
from fedretina.networks.resnet import load_torchvision_state, resnet18_encoder, resnet50_encoder
from fedretina.networks.signal_cnn import signal_cnn_encoder
from fedretina.networks.vit import vit_small_encoder
from fedretina.settings.network import EncoderName, Normalisation

ENCODERS: dict[EncoderName, Callable[[], Encoder]] = {
    "resnet18": resnet18_encoder,
    "resnet50": resnet50_encoder,
    "efficientnet_lite0": efficientnet_lite0_encoder,
    "mobilenet_v2": mobilenet_v2_encoder,
    "efficientnet_b0": efficientnet_b0_encoder,
    "efficientnet_b4": efficientnet_b4_encoder,
    "vit_small": vit_small_encoder,
    "signal_cnn": signal_cnn_encoder,
}


EXITS: Mapping[EncoderName, tuple[int, ...]] = {
    "resnet18": (1, 2, 3, 4),  # FedEE: after blocks 1, 3, 5 and 7
    "resnet50": (1, 2, 3, 4),
    "efficientnet_lite0": (0, 1, 2, 3),  # all of its five but the last; earlier than FedEE's of efficientnet_b0
    "mobilenet_v2": (3, 4, 5, 6),
    "efficientnet_b0": (3, 4, 5, 6),  # FedEE: after MBConv blocks 4, 7, 10 and 14
    "efficientnet_b4": (3, 4, 5, 6),
    "vit_small": (1, 2, 3, 4),
    "signal_cnn": (0, 1, 2),  # FedEE
}
"""Stages that early exits follow where a job names none; blocks of the paper are counted from 0."""


class Published(NamedTuple):
    """Weights that others publish for an encoder.

    Attributes:
        load: Puts a state with their keys into the encoder.
        normalisation: Of the images that they were trained with.
    """

    load: Callable[[Encoder, Mapping[str, Tensor]], None]
    normalisation: Normalisation


PUBLISHED: dict[EncoderName, Published] = {
    "resnet18": Published(load_torchvision_state, "imagenet"),
    "resnet50": Published(load_torchvision_state, "imagenet"),
    "efficientnet_lite0": Published(load_lite0_state, "half"),
    "mobilenet_v2": Published(load_mobilenet_state, "imagenet"),
    "efficientnet_b0": Published(load_efficientnet_state, "imagenet"),
    "efficientnet_b4": Published(load_efficientnet_state, "imagenet"),
}
"""There are none for ViT-Small: those that one can find have positions of their own, a class token, or both; and none
for signals."""
