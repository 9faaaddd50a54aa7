"""What a network is made of, and where it starts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, StringConstraints, field_validator, model_validator

from fedretina.settings.choice import Choice, ReadBy, ReadSettings
from fedretina.settings.encoder import EncoderTraits, encoder_traits, packaged_encoders

FrozenStages = Literal["nothing", "all"] | Annotated[int, Field(ge=1, strict=True)]


class HeadSettings(ReadSettings):
    """Layers of the head.

    Attributes:
        layout: "linear_bn_relu_linear" is the classifier of the official FedUAA code; "linear" is the one
            fully connected layer that its paper describes.
        width: Hidden units of the first layout, 512 in FedUAA; refused with "linear".
        start: Where the head begins: "seed" at random, "ridge" as a ridge regression on what the network makes of the
            site's own training images before anything is trained, with the last layer of each early exit likewise. Only
            a head that stays at its site can begin so. Where stages with BatchNorm train, set
            `network.frozen_statistics` with it, or the features move away from under the head.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layout: Literal["linear_bn_relu_linear", "linear"] = "linear_bn_relu_linear"
    width: Annotated[int, Field(ge=1), ReadBy("layout", ("linear_bn_relu_linear",))] = 512
    start: Annotated[Literal["seed", "ridge"], ReadBy("layout", ("linear",))] = "seed"


class ContrastSettings(Choice):
    """Layers of the contrastive head; a method of label-free training says which it needs.

    Attributes:
        layout: What a job calls them: as the methods that need them.
        hidden: Units between the two layers, of a predictor too. None is the layout's own: as wide as the features, or
            4096 for "moco_v3".
        width: Length of an embedding. None is the layout's own: 128, or 256 for "moco_v3".
    """

    key: ClassVar[str] = "layout"
    default: ClassVar[str | None] = "moco_v2"
    layout: str
    hidden: int | None = Field(default=None, ge=2, le=16384)
    width: int | None = Field(default=None, ge=2, le=8192)


class MocoV2LayersSettings(ContrastSettings):
    """Two layers with a ReLU between and no BatchNorm."""

    layout: Literal["moco_v2"] = "moco_v2"


class MocoV3LayersSettings(ContrastSettings):
    """BatchNorm after both layers, and a predictor behind, as in the published ResNet-50."""

    layout: Literal["moco_v3"] = "moco_v3"


class SimclrLayersSettings(ContrastSettings):
    """The same two layers as "moco_v2"."""

    layout: Literal["simclr"] = "simclr"


class ExitSettings(BaseModel):
    """Early exits of an encoder (FedEE, section 4.2, Eq. 7).

    Attributes:
        after: Stages of the encoder that an exit follows, counted from 0. None takes those of the paper where it
            names some, else those of the encoder.
        width: Hidden units H that the exits are measured by; None is the width of the encoder's last stage: 1280, 512
            and 64 for the networks of the official code, as there.
        growth: How much wider a pair of stages makes an exit: h_i = floor(growth^((M - i) / 2) H) for exit i of M,
            counted from the input, so that early exits, which see simple features, are wider. The paper has 1.2.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    after: tuple[int, ...] | None = None
    width: int | None = Field(default=None, ge=1, le=8192)
    growth: float = Field(default=1.2, ge=1, le=4)

    @field_validator("after")
    @classmethod
    def _after_is_ascending(cls, after: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if after is not None and (not after or min(after) < 0 or sorted(set(after)) != list(after)):
            raise ValueError(f"exits.after is {list(after)}: name stages from 0, in ascending order, none twice.")
        return after

    def widths(self, exits: int, last: int) -> tuple[int, ...]:
        """Hidden units of each of M exits, from the input to the end."""
        base = self.width or last
        return tuple(math.floor(math.sqrt(self.growth) ** (exits - i) * base) for i in range(exits))  # h_i


class DropoutSettings(BaseModel):
    """Dropout for MC-dropout (Gal and Ghahramani, ICML 2016; as a rival in FedEE).

    Attributes:
        rate: Share of values that are dropped; 0.2 in FedEE's code.
        after: Stages of the encoder that it follows, counted from 0; None takes those that early exits would follow.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: float = Field(default=0.2, gt=0, lt=1)
    after: tuple[int, ...] | None = Field(default=None, min_length=1)


WeightsSource = Literal["none", "package", "file"]

Sha256 = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True, pattern=r"^\s*[0-9a-fA-F]{64}\s*$")]


class WeightsSettings(BaseModel):
    """Where the encoder's weights come from.

    Attributes:
        source: "none" starts from the seed; "package" reads an installed package (EfficientNet-Lite0
            only); "file" reads `file`.
        file: An encoder that a run exported, or weights in a form that others publish for the encoder, such as
            RETFound's (docs/encoders.md), safetensors or torch format. A job names only the digest; each end adds its
            own path before it builds the network.
        sha256: Digest that the file must have, 64 hex digits; it is checked before anything is unpacked.
    """

    # The input is hidden because a validation error may travel and would otherwise print the path.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    source: WeightsSource = "none"
    file: Path | None = None
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _file_and_digest_go_together(self) -> WeightsSettings:
        given = [name for name in ("file", "sha256") if getattr(self, name) is not None]
        if self.source == "file" and self.sha256 is None:
            raise ValueError('weights.source "file" needs the file\'s sha256; give it.')
        if self.source != "file" and given:
            raise ValueError(
                f'weights.{" and weights.".join(given)} can only be used with weights.source "file", but the '
                f'source is "{self.source}"; set the source to "file" or remove them.'
            )
        return self


class NetworkSettings(BaseModel):
    """What answers.

    Attributes:
        encoder: Architecture of the shared part. FedUAA uses "resnet50", the OCT paper "efficientnet_b4". Some need
            images whose side is a multiple of their patches'.
        weights: Where the encoder starts.
        projector: Width of a two-layer projection between encoder and head, which travels; 256 in MOON. None for none.
        head: Layers of the personal part.
        calibrator: Whether a temperature for each image, told from its features, divides the logits. The sites and
            the server find it after training (multi-domain temperature scaling).
        contrast: Projector and predictor of contrastive pre-training, which travel; None for none. They hang on the
            encoder beside the head: no answer passes through them. Refused without a phase that pre-trains.
        exits: Early exits after some stages of the encoder; None for none. With them the network gives an answer per
            exit and the final head's last, and the objective sums over all.
        dropout: Dropout after some stages, for MC-dropout (`evaluation.passes`); None for none.
        frozen: Stages of the encoder, counted from the input, that keep the weights which the run starts with:
            "nothing", "all", or how many. They neither train nor travel, since both ends have them from the same
            weights, and their BatchNorm keeps its statistics. What they give is rounded to float16 in the run, and not
            in prediction and exports.
        frozen_cache: Whether a site keeps what the frozen stages give for each image, and for each flip and quarter
            turn of it that `augment` asks for, so that a round costs the other stages only. "strict" refuses random
            transforms that give other pixels each time, "lenient" applies them and runs the frozen stages anew for
            each batch of training, "off" keeps nothing. Figures do not depend on whether something was kept.
        frozen_statistics: Whether the BatchNorm of the whole encoder normalises by the statistics that the run starts
            with, in training as in evaluation, while its scale and shift train. A few dozen images of another kind than
            the weights were trained on move the statistics, and with them all features, faster than a head can follow.
        normalise: How images in [0, 1] are normalised. "auto" is what the weights were trained with, as an exported
            encoder's file says, and "half" when they come from the seed. The official FedUAA code feeds ImageNet
            weights with images that are not normalised; "none" reproduces that.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    encoder: str = "resnet18"
    weights: WeightsSettings = Field(default_factory=WeightsSettings)
    projector: int | None = Field(default=None, ge=2, le=8192)
    head: HeadSettings = Field(default_factory=HeadSettings)
    calibrator: bool = False
    contrast: SerializeAsAny[ContrastSettings] | None = None
    exits: ExitSettings | None = None
    dropout: DropoutSettings | None = None
    frozen: FrozenStages = "nothing"
    frozen_cache: Literal["strict", "lenient", "off"] = "strict"
    frozen_statistics: bool = False
    normalise: Literal["auto", "none", "imagenet", "half"] = "auto"

    @field_validator("encoder")
    @classmethod
    def _encoder_is_known(cls, name: str) -> str:
        encoder_traits(name)  # refuses what it does not know
        return name

    @property
    def traits(self) -> type[EncoderTraits]:
        """What the encoder can do."""
        return encoder_traits(self.encoder)

    @model_validator(mode="after")
    def _package_has_the_encoder(self) -> NetworkSettings:
        if self.weights.source == "package" and not self.traits.packaged:
            raise ValueError(
                f'weights.source "package" exists for {", ".join(packaged_encoders())} only, but the encoder is '
                f'{self.encoder}; use the source "file" with a sha256, or "none".'
            )
        return self

    @model_validator(mode="after")
    def _a_cache_has_what_to_keep(self) -> NetworkSettings:
        if self.frozen == "nothing" and self.frozen_cache != type(self).model_fields["frozen_cache"].default:
            raise ValueError(
                f"frozen_cache is {self.frozen_cache!r}, but nothing is frozen and nothing reads it: leave it out, or "
                "set frozen."
            )
        return self

    @model_validator(mode="after")
    def _one_answer_to_calibrate(self) -> NetworkSettings:
        if self.calibrator and self.exits is not None:
            raise ValueError(
                "a calibrator divides the logits of one head, and exits give several answers: leave one of the two out."
            )
        return self
