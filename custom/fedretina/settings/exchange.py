"""What is personal and what travels."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, SerializeAsAny, model_validator

from fedretina.settings.choice import GrownSettings, ReadBy, ReadSettings
from fedretina.settings.codec import CodecSettings, EncodingSettings, NoCodecSettings


class Kind(StrEnum):
    """What a tensor of a payload is.

    In the encoder a BatchNorm is told apart, because its statistics describe the site's images. A head, an
    exit or a projector is one kind with all that it holds, its BatchNorm too.
    """

    ENCODER = "encoder"
    """Weights of the encoder outside BatchNorm."""
    NORM = "norm"
    """Scale and shift of the encoder's BatchNorm (gamma, beta)."""
    STATISTIC = "statistic"
    """Running mean and variance of the encoder's BatchNorm."""
    COUNTER = "counter"
    """`num_batches_tracked` of the encoder: never travels, except under the official name match."""
    HEAD = "head"
    """The classifier."""
    EXIT = "exit"
    """Early exits."""
    PROJECTOR = "projector"
    """Projection and prediction layers of contrastive training."""
    CONTROL = "control"
    """Control variates and drift memories; they accompany a state and are never part of it."""
    CALIBRATION = "calibration"
    """Sums over the features of a site's validation images, and the temperature model that is solved from them."""
    SUMS = "sums"
    """Sums over the features of a site's training images by class, and their total over all sites."""


_SOMETHING_TRAVELS = ReadBy("personal", ("nothing", "bias", "exits", "head"))


class ExchangeSettings(ReadSettings, GrownSettings):
    """What is personal.

    Attributes:
        personal: "head" keeps the head and early exits at home, as grades that differ between sites
            demand; "exits" keeps the exits and lets the head travel (FedEE); "bias" lets both travel but for the bias
            of their last layers, in which a site's own shares of the classes stand; "nothing" lets both travel;
            "everything" lets nothing travel (training alone, SingleSet).
        batchnorm: "local_all" keeps every BatchNorm (FedBN, FedUAA). "local_stats" keeps its running
            statistics and shares scale and shift: what code built on `model.parameters()` does and calls
            FedAvg. "shared_all" shares the statistics too. "none" insists that neither the encoder nor
            another part that travels has a BatchNorm. Counters are never averaged. Refused under "everything".
        bn_match: "module" finds BatchNorm by the type of the module. "name" reproduces the official code of
            FedUAA and FedBN: only keys that contain "bn" stay, so 5 of the 53 of ResNet-50 leak, 2 of the 49 of
            EfficientNet-Lite0 and all of EfficientNet-B0's. Only for comparison with published numbers.
        encrypt: "head" lets a travelling head leave a site under homomorphic encryption alone: the server mixes it
            without reading it (`exchange.encryption`, extra `he`).
        codec: How the numbers of parameters and controls travel: "none" as they are, in float32; "bf16", "int8" and
            "int4" as what changed, in fewer bits, with what is lost made up for in the next round (docs/wire_codec.md).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    newer: ClassVar[frozenset[str]] = frozenset({"codec"})

    personal: Literal["nothing", "bias", "exits", "head", "everything"] = "head"
    batchnorm: Annotated[Literal["local_all", "local_stats", "shared_all", "none"], _SOMETHING_TRAVELS] = "local_all"
    bn_match: Annotated[Literal["module", "name"], _SOMETHING_TRAVELS] = "module"
    encrypt: Literal["nothing", "head"] = "nothing"
    codec: Annotated[SerializeAsAny[CodecSettings], _SOMETHING_TRAVELS] = NoCodecSettings()

    @model_validator(mode="after")
    def _name_match_keeps_all(self) -> ExchangeSettings:
        if self.bn_match == "name" and self.batchnorm != "local_all":
            raise ValueError(
                f'bn_match "name" reproduces code that keeps BatchNorm, but batchnorm is "{self.batchnorm}"; '
                'set batchnorm to "local_all" or bn_match to "module".'
            )
        return self

    @model_validator(mode="after")
    def _what_is_encrypted_travels(self) -> ExchangeSettings:
        if self.encrypt == "head" and (self.personal != "nothing" or self.bn_match != "module"):
            raise ValueError(
                'encrypt is "head", but only a head that travels by the rules of modules can be encrypted: set '
                'personal to "nothing" and bn_match to "module", or encrypt to "nothing".'
            )
        return self

    @model_validator(mode="after")
    def _what_is_encrypted_is_not_encoded(self) -> ExchangeSettings:
        if self.encrypt != "nothing" and isinstance(self.codec, EncodingSettings):
            raise ValueError(
                f"codec is {self.codec.name!r}, but encrypt is {self.encrypt!r}: the server would have to "
                "decode what it cannot read. Set codec to 'none', or encrypt to 'nothing'."
            )
        return self
