"""How a site learns from images without labels."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedretina.settings.choice import Choice

KeySync = Literal["reset", "ema", "aggregate"]
KeyBatchNorm = Literal["split", "eval", "train"]


class ContrastiveSettings(Choice):
    """How a site learns from images without labels; "moco_v2" where a file names no method.

    Attributes:
        layout: Layers that the method needs (`network.contrast.layout`).
        predicts: Whether a predictor is among them.
        temperature: tau; each method has its own default.
        mask_patients: Whether images of one patient are no negatives of each other. One image never is its own.
    """

    key: ClassVar[str] = "method"
    default: ClassVar[str | None] = "moco_v2"
    layout: ClassVar[str]
    predicts: ClassVar[bool] = False
    method: str
    temperature: float = Field(gt=0, le=10, allow_inf_nan=False)
    mask_patients: bool = True

    @property
    def keys_travel(self) -> bool:
        """Whether the server averages a key network."""
        return False


class MomentumSettings(ContrastiveSettings):
    """What the methods with a key network have in common.

    Attributes:
        momentum: m of the key network.
        key_sync: "reset" copies the aggregate into the key network at the start of each round. "ema" goes on with the
            site's own, which follows the aggregate slowly: it lags by 1 / (1 - m) steps, some rounds at a small site.
            "aggregate" sends it along, and goes on with the mean of the sites' key networks, weighted as their encoders
            are: a slow network that all sites share, at nearly twice the bytes, up and down. The default sends nothing
            more, keeps nothing, and holds no age of a network that the site did not train last.
        key_bn: BatchNorm of the key network. "split" shuffles the batch and passes it in parts, so that a query and its
            key share no statistics by which the contrast could be solved; on one device the official shuffling over
            devices does nothing. "train" takes the statistics of the batch, "eval" the query network's running ones.
            "moco_v3" trains: its positives and negatives come from one batch, whose statistics tell nothing.
        splits: Parts of "split", 8 as for eight devices; each has two images at least.
    """

    momentum: float = Field(ge=0, le=1)
    key_sync: KeySync = "reset"
    key_bn: KeyBatchNorm
    splits: int = Field(default=8, ge=1, le=1024)

    @model_validator(mode="after")
    def _parts_are_split(self) -> Self:
        if self.key_bn != "split" and self.splits != MomentumSettings.model_fields["splits"].default:
            raise ValueError(
                f"splits is {self.splits}, but key_bn {self.key_bn!r} splits no batch: leave splits out, or set key_bn "
                "to 'split'."
            )
        return self

    @property
    def keys_travel(self) -> bool:
        """See `ContrastiveSettings.keys_travel`."""
        return self.key_sync == "aggregate"


class MocoV2Settings(MomentumSettings):
    """Holds negatives in a queue: what the OCT paper's equations 4 to 6 say, though the paper calls it MoCo v3.

    Attributes:
        method: "moco_v2".
        temperature: tau.
        momentum: m of the key network.
        queue: K, keys in the queue at most; 65536 in the OCT paper. It never holds more than one epoch.
        queue_start: How the queue begins a round. "refill" fills it with the new key network's keys of the site's
            images, each at most once: one pass without gradient. "flush" empties it. "keep" goes on with the last
            round's keys, which are an older network's.
    """

    layout: ClassVar[str] = "moco_v2"
    method: Literal["moco_v2"] = "moco_v2"
    temperature: float = Field(default=0.2, gt=0, le=10, allow_inf_nan=False)
    momentum: float = Field(default=0.999, ge=0, le=1)
    key_bn: KeyBatchNorm = "split"
    queue: int = Field(default=65536, ge=2, le=1 << 22)
    queue_start: Literal["keep", "flush", "refill"] = "refill"


class MocoV3Settings(MomentumSettings):
    """The official MoCo v3: a predictor, both directions, negatives from the batch.

    Attributes:
        method: "moco_v3".
        temperature: tau; 1 in the published ResNet-50.
        momentum: m of the key network, which goes on to 1 along a cosine over the phase.
    """

    layout: ClassVar[str] = "moco_v3"
    predicts: ClassVar[bool] = True
    method: Literal["moco_v3"] = "moco_v3"
    temperature: float = Field(default=1.0, gt=0, le=10, allow_inf_nan=False)
    momentum: float = Field(default=0.99, ge=0, le=1)
    key_bn: KeyBatchNorm = "train"


class SimclrSettings(ContrastiveSettings):
    """One network, and negatives from the batch.

    Attributes:
        method: "simclr".
        temperature: tau.
    """

    layout: ClassVar[str] = "simclr"
    method: Literal["simclr"] = "simclr"
    temperature: float = Field(default=0.1, gt=0, le=10, allow_inf_nan=False)
