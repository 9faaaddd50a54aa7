"""How a site learns from images without labels."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ContrastiveMethod = Literal["moco_v2", "moco_v3", "simclr"]

KeyBatchNorm = Literal["split", "eval", "train"]

_TEMPERATURE: dict[ContrastiveMethod, float] = {"moco_v2": 0.2, "moco_v3": 1.0, "simclr": 0.1}

_MOMENTUM: dict[ContrastiveMethod, float] = {"moco_v2": 0.999, "moco_v3": 0.99, "simclr": 0.0}

_KEY_BN: dict[ContrastiveMethod, KeyBatchNorm] = {"moco_v2": "split", "moco_v3": "train", "simclr": "train"}


class ContrastiveSettings(BaseModel):
    """How a site learns from images without labels. What a method does not have is not read.

    Attributes:
        method: "moco_v2" holds negatives in a queue. It is what the OCT paper's equations 4 to 6 say, though the paper
            calls it MoCo v3. "moco_v3" is the official one: a predictor, both directions, negatives from the batch.
            "simclr" has one network and negatives from the batch.
        temperature: tau. None is the method's own: 0.2, 1.0 (the published ResNet-50 of MoCo v3), 0.1.
        queue: K, keys in the queue of "moco_v2", at most; 65536 in the OCT paper. It never holds more than one epoch.
        momentum: m of the key network. None is the method's own: 0.999, or 0.99 for "moco_v3", where it goes on
            to 1 along a cosine over the phase.
        key_sync: "reset" copies the aggregate into the key network at the start of each round. "ema" goes on with the
            site's own, which follows the aggregate slowly: it lags by 1 / (1 - m) steps, some rounds at a small site.
            "aggregate" sends it along, and goes on with the mean of the sites' key networks, weighted as their encoders
            are: a slow network that all sites share, at nearly twice the bytes, up and down. The default sends nothing
            more, keeps nothing, and holds no age of a network that the site did not train last.
        queue_start: How the queue begins a round. "refill" fills it with the new key network's keys of the site's
            images, each at most once: one pass without gradient. "flush" empties it. "keep" goes on with the last
            round's keys, which are an older network's.
        key_bn: BatchNorm of the key network. "split" shuffles the batch and passes it in parts, so that a query and its
            key share no statistics by which the contrast could be solved; on one device the official shuffling over
            devices does nothing. "train" takes the statistics of the batch, "eval" the query network's running ones.
            None is the method's own: "split" for "moco_v2"; "train" for "moco_v3", whose positives and negatives
            come from one batch, so that its statistics tell nothing.
        splits: Parts of "split", 8 as for eight devices; each has two images at least.
        mask_patients: Whether images of one patient are no negatives of each other. One image never is its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: ContrastiveMethod = "moco_v2"
    temperature: float | None = Field(default=None, gt=0, le=10, allow_inf_nan=False)
    queue: int = Field(default=65536, ge=2, le=1 << 22)
    momentum: float | None = Field(default=None, ge=0, le=1)
    key_sync: Literal["reset", "ema", "aggregate"] = "reset"
    queue_start: Literal["keep", "flush", "refill"] = "refill"
    key_bn: KeyBatchNorm | None = None
    splits: int = Field(default=8, ge=1, le=1024)
    mask_patients: bool = True

    @property
    def keys_travel(self) -> bool:
        """Whether the key network is averaged by the server; SimCLR has none."""
        return self.key_sync == "aggregate" and self.method != "simclr"

    @property
    def resolved_temperature(self) -> float:
        """The temperature, or the method's own."""
        return _TEMPERATURE[self.method] if self.temperature is None else self.temperature

    @property
    def resolved_momentum(self) -> float:
        """The momentum at the start of the phase, or the method's own."""
        return _MOMENTUM[self.method] if self.momentum is None else self.momentum

    @property
    def resolved_key_bn(self) -> KeyBatchNorm:
        """BatchNorm's way in the key network, or the method's own."""
        return self.key_bn or _KEY_BN[self.method]
