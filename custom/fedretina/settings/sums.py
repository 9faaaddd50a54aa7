"""Heads from sums: what a site sums over its training images, and how it answers in the end."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SumsSettings(BaseModel):
    """Sums over features of the encoder as the run starts with it; the heads follow from them by ridge regression.

    Attributes:
        features: Numbers per image that are summed: where the encoder gives more, a random projection that both ends
            draw from the run's seed takes them to so many. A site sends about half their square. None for all.
        shares: How an image is counted whose grade stands for several classes, one weight for each of the run's
            classes: a grade of "severe" and "proliferative" gives each its weight over the sum of both. They are what a
            consortium knows of how common the classes are. None counts them alike.
        balance: Whether every class that occurs counts alike in the federated head, however many images it has; the
            sums are then sent by class, so many times as large.
        answer: Which head a site ends with: "own" (ridge regression on its own training images), "federated" (from the
            sums of all), "both" (the mean of their scores), or the one of the three whose answers to the validation
            split have the least negative log likelihood ("validation").
        bound: Longest feature vector of an image, for sites that add noise: features are cut to it, and not
            standardised by the site's own statistics, which no noise would cover. None cuts nothing, and then a site
            whose policy adds noise to sums refuses.
        encrypt: "with_keys" encrypts the sums wherever the ends have keys (`he_keys`), so that the server sees their
            total alone; "always" refuses to run without.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    features: int | None = Field(default=384, ge=2, le=4096)
    shares: tuple[float, ...] | None = None
    balance: bool = False
    answer: Literal["own", "federated", "both", "validation"] = "both"
    bound: float | None = Field(default=None, gt=0, le=1e4)
    encrypt: Literal["with_keys", "always"] = "with_keys"

    def width(self, features: int) -> int:
        """Length d of what is summed, the constant last, where the encoder gives so many features."""
        return 1 + (features if self.features is None else min(self.features, features))

    @model_validator(mode="after")
    def _shares_are_weights(self) -> Self:
        if self.shares is not None and not all(0 < share < 1e6 for share in self.shares):
            raise ValueError(f"shares are {list(self.shares)}: give each class a weight above 0.")
        return self
