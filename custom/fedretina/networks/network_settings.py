"""What a network is made of, as a job's settings say it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedretina.networks.contrast import ContrastSettings
from fedretina.networks.dropout import DropoutSettings
from fedretina.networks.encoder import EncoderName
from fedretina.networks.exits import ExitSettings
from fedretina.networks.heads import HeadSettings
from fedretina.networks.weights import PACKAGED, WeightsSettings


class NetworkSettings(BaseModel):
    """What answers.

    Attributes:
        encoder: Architecture of the shared part. FedUAA uses "resnet50", the OCT paper "efficientnet_b4"; "vit_small"
            needs images whose side is a multiple of 16.
        weights: Where the encoder starts.
        projector: Width of a two-layer projection between encoder and head, which travels; 256 in MOON. None for none.
        head: Layers of the personal part.
        calibrator: Whether a temperature for each image, told from its features, divides the logits. The sites and
            the server find it after training (multi-domain temperature scaling).
        contrast: Projector and predictor of contrastive pre-training, which travel; None for none. They hang on the
            encoder beside the head: no answer passes through them.
        exits: Early exits after some stages of the encoder; None for none. With them the network gives an answer an
            exit and the final head's last, and the objective sums over all.
        dropout: Dropout after some stages, for MC-dropout (`evaluation.passes`); None for none.
        normalise: How images in [0, 1] are normalised. "auto" is what the weights were trained with, as an exported
            encoder's file says, and "half" when they come from the seed. The official FedUAA code feeds ImageNet
            weights with images that are not normalised; "none" reproduces that.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    encoder: EncoderName = "resnet18"
    weights: WeightsSettings = Field(default_factory=WeightsSettings)
    projector: int | None = Field(default=None, ge=2, le=8192)
    head: HeadSettings = Field(default_factory=HeadSettings)
    calibrator: bool = False
    contrast: ContrastSettings | None = None
    exits: ExitSettings | None = None
    dropout: DropoutSettings | None = None
    normalise: Literal["auto", "none", "imagenet", "half"] = "auto"

    @model_validator(mode="after")
    def _package_has_the_encoder(self) -> NetworkSettings:
        if self.weights.source == "package" and self.encoder not in PACKAGED:
            raise ValueError(
                f'weights.source "package" exists for {", ".join(sorted(PACKAGED))} only, but the encoder is '
                f'{self.encoder}; use the source "file" with a sha256, or "none".'
            )
        return self

    @model_validator(mode="after")
    def _one_answer_to_calibrate(self) -> NetworkSettings:
        if self.calibrator and self.exits is not None:
            raise ValueError(
                "a calibrator divides the logits of one head, and exits give several answers: leave one of the two out."
            )
        return self
