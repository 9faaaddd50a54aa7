"""The encoders that a network can have: a class for each, with what checks of a run must know of it without torch.

`networks` has the other half, a builder below `@encoder(ITS_TRAITS)` in one file per family. A package of somebody
else's brings both in a module that it names as an entry point of the group `fedretina.parts`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedretina.settings.choice import Choice

Normalisation = Literal["none", "imagenet", "half"]
"""How images in [0, 1] are normalised before an encoder sees them."""


class EncoderTraits(Choice):
    """An architecture; it has no settings beside its name.

    Attributes:
        exits: Stages that early exits follow where a job names none, counted from 0.
        patch: The side of an image must be a multiple of it, in pixels.
        side: Side in pixels of the images that the published weights are made for: those of their publisher's figures.
            None where none are published.
        positions: Whether the weights hold a position for each patch of such an image; they are resampled for others.
        normalisation: Of the images that the published weights were trained with; None where none are published.
        packaged: Whether an installed package brings weights (`weights.source: package`).
        signals: Whether it takes signals, one row of samples, and no pictures.
        name: What a job calls it.
    """

    exits: ClassVar[tuple[int, ...]]
    patch: ClassVar[int] = 1
    side: ClassVar[int | None] = None
    positions: ClassVar[bool] = False
    normalisation: ClassVar[Normalisation | None] = None
    packaged: ClassVar[bool] = False
    signals: ClassVar[bool] = False
    name: str


def encoder_traits(name: str) -> type[EncoderTraits]:
    """What an encoder of a name can do; other packages are asked only for a name that the product does not have.

    Raises:
        SettingsError: There is none of that name.
    """
    return EncoderTraits.named(name, "encoder")


def packaged_encoders() -> list[str]:
    """Names of the encoders whose weights an installed package brings."""
    return [name for name, traits in EncoderTraits.choices().items() if traits.packaged]


class ResNet18Traits(EncoderTraits):
    """ResNet-18."""

    exits: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)  # FedEE: after blocks 1, 3, 5 and 7, counted from 0
    side: ClassVar[int | None] = 224
    normalisation: ClassVar[Normalisation | None] = "imagenet"
    name: Literal["resnet18"] = "resnet18"


class ResNet50Traits(EncoderTraits):
    """ResNet-50, that of FedUAA."""

    exits: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    side: ClassVar[int | None] = 224
    normalisation: ClassVar[Normalisation | None] = "imagenet"
    name: Literal["resnet50"] = "resnet50"


class EfficientNetLite0Traits(EncoderTraits):
    """EfficientNet-Lite0, whose weights are installed with the product."""

    exits: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)  # all but the last; earlier than FedEE's of efficientnet_b0
    side: ClassVar[int | None] = 224
    normalisation: ClassVar[Normalisation | None] = "half"
    packaged: ClassVar[bool] = True
    name: Literal["efficientnet_lite0"] = "efficientnet_lite0"


class MobileNetV2Traits(EncoderTraits):
    """MobileNetV2."""

    exits: ClassVar[tuple[int, ...]] = (3, 4, 5, 6)
    side: ClassVar[int | None] = 224
    normalisation: ClassVar[Normalisation | None] = "imagenet"
    name: Literal["mobilenet_v2"] = "mobilenet_v2"


class EfficientNetB0Traits(EncoderTraits):
    """EfficientNet-B0, FedEE's for skin."""

    exits: ClassVar[tuple[int, ...]] = (3, 4, 5, 6)  # FedEE: after MBConv blocks 4, 7, 10 and 14, counted from 0
    side: ClassVar[int | None] = 224
    normalisation: ClassVar[Normalisation | None] = "imagenet"
    name: Literal["efficientnet_b0"] = "efficientnet_b0"


class EfficientNetB4Traits(EncoderTraits):
    """EfficientNet-B4, that of the OCT paper."""

    exits: ClassVar[tuple[int, ...]] = (3, 4, 5, 6)
    side: ClassVar[int | None] = 380
    normalisation: ClassVar[Normalisation | None] = "imagenet"
    name: Literal["efficientnet_b4"] = "efficientnet_b4"


class ViTSmallTraits(EncoderTraits):
    """ViT-Small with fixed positions and no class token: published weights have others, and none fit."""

    exits: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    patch: ClassVar[int] = 16
    name: Literal["vit_small"] = "vit_small"


class SignalCnnTraits(EncoderTraits):
    """Three convolutions over time, FedEE's for an accelerometer."""

    exits: ClassVar[tuple[int, ...]] = (0, 1, 2)  # FedEE
    signals: ClassVar[bool] = True
    name: Literal["signal_cnn"] = "signal_cnn"


class _TokensTraits(EncoderTraits):
    """What vision transformers with learned positions have in common: a patch embedding and four quarters of blocks."""

    exits: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    patch: ClassVar[int] = 14
    positions: ClassVar[bool] = True
    normalisation: ClassVar[Normalisation | None] = "imagenet"


class RetFoundMaeTraits(_TokensTraits):
    """RETFound: ViT-L/16, masked autoencoder of retinal images, features by the mean of the patches."""

    patch: ClassVar[int] = 16
    side: ClassVar[int | None] = 224
    name: Literal["retfound_mae"] = "retfound_mae"


class RetFoundDinoV2Traits(_TokensTraits):
    """RETFound-DINOv2: ViT-L/14, features by the class token."""

    side: ClassVar[int | None] = 224
    name: Literal["retfound_dinov2"] = "retfound_dinov2"


class RetFoundGreenTraits(_TokensTraits):
    """RETFound-Green: ViT-S/14 with four registers, features by the mean of the patches."""

    side: ClassVar[int | None] = 392
    normalisation: ClassVar[Normalisation | None] = "half"
    name: Literal["retfound_green"] = "retfound_green"


class DinoV2SmallTraits(_TokensTraits):
    """DINOv2 ViT-S/14, features by the class token."""

    side: ClassVar[int | None] = 518
    name: Literal["dinov2_small"] = "dinov2_small"


class DinoV2BaseTraits(_TokensTraits):
    """DINOv2 ViT-B/14, features by the class token."""

    side: ClassVar[int | None] = 518
    name: Literal["dinov2_base"] = "dinov2_base"


class DinoV2LargeTraits(_TokensTraits):
    """DINOv2 ViT-L/14, features by the class token."""

    side: ClassVar[int | None] = 518
    name: Literal["dinov2_large"] = "dinov2_large"


class SwinV2TinyTraits(EncoderTraits):
    """Swin Transformer V2, tiny, windows of 8."""

    exits: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    patch: ClassVar[int] = 32
    side: ClassVar[int | None] = 256
    normalisation: ClassVar[Normalisation | None] = "imagenet"
    name: Literal["swinv2_tiny"] = "swinv2_tiny"


class ConvNeXtTinyTraits(EncoderTraits):
    """ConvNeXt, tiny."""

    exits: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    patch: ClassVar[int] = 32
    side: ClassVar[int | None] = 224
    normalisation: ClassVar[Normalisation | None] = "imagenet"
    name: Literal["convnext_tiny"] = "convnext_tiny"
