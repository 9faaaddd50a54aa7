"""How the server weighs the sites' updates: uniform, by images, or UAW by theta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedretina.aggregation.robust import RobustSettings

Scalars = Mapping[str, Mapping[str, float]]
"""Scalars by site and name."""


class AggregationSettings(BaseModel):
    """Choice on the aggregation axis.

    Attributes:
        rule: `uniform` 1/N; `samples` n_i / sum n; `uaw` softmax of theta (FedUAA, section 2.2); `similarity` a model a
            site, mixed by how alike BatchNorm statistics are (FedAP), which the sites send once before training.
        own_share: Weight m of a site in its own model under `similarity`; 0.5 in FedAP.
        temperature: UAW divides theta by it before the softmax. 1 is the paper; smaller sharpens. With five sites
            and theta in (0, 1], the weights of the paper lie in [0.084, 0.405]: close to uniform.
        proportion: An update is refused by name when its change is more than this many times the median change of the
            other sites and a tenth of the length of the model that it was sent, whichever is larger, in any kind of
            tensors. Honest updates of real sites measured about 1, the worst of a run that diverges 66
            (docs/robust_rules.md). null takes every finite update.
        robust: How the values are combined once the sites are weighed; by default their weighted mean.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    rule: Literal["uniform", "samples", "uaw", "similarity"] = "uaw"
    own_share: float = Field(default=0.5, ge=0, le=1)
    temperature: float = Field(default=1.0, gt=0, le=100)
    proportion: float | None = Field(default=300.0, gt=1, le=1e6)
    robust: RobustSettings = RobustSettings()

    @model_validator(mode="after")
    def _a_robust_rule_fits_the_weights(self) -> Self:
        robust = self.robust
        if self.personal and robust.name != "none":
            raise ValueError(
                f"robust {robust.name!r} makes one model of all updates, but rule 'similarity' keeps one a site: "
                "choose another of the two."
            )
        if not robust.weighs and self.rule != "uniform":
            raise ValueError(
                f"robust {robust.name!r} counts every site alike, but rule {self.rule!r} weighs them by what they say "
                "of themselves, which a hostile site forges: set rule to 'uniform', or robust.name to 'norm_bound', "
                "which keeps the weights."
            )
        return self

    @property
    def personal(self) -> bool:
        """Whether each site gets a model of its own, and statistics are asked for before training."""
        return self.rule == "similarity"


def uniform_weights(scalars: Scalars, settings: AggregationSettings) -> dict[str, float]:
    """Weigh every site alike: w_i = 1/N."""
    return {site: 1.0 / len(scalars) for site in sorted(scalars)}


def sample_weights(scalars: Scalars, settings: AggregationSettings) -> dict[str, float]:
    """Weigh by training images: w_i = n_i / sum_j n_j (McMahan et al. 2017)."""
    total = sum(scalars[site]["images"] for site in sorted(scalars))
    return {site: scalars[site]["images"] / total for site in sorted(scalars)}


def uaw_weights(scalars: Scalars, settings: AggregationSettings) -> dict[str, float]:
    """Weigh by uncertainty: w_i = exp(theta_i) / sum_j exp(theta_j) (FedUAA, section 2.2).

    Differs from the official code only where that code breaks: theta is finite here, since a site decides every
    degenerate case itself (`uncertainty.theta`) and the server refuses an update whose theta is not. The
    number of images plays no part, as in the paper. Theta = K/S at its threshold, so with equal evidence a site
    with more grades weighs more.
    """
    sites = sorted(scalars)
    theta = np.array([scalars[site]["theta"] for site in sites]) / settings.temperature  # Theta
    raised = np.exp(theta - np.max(theta))
    return dict(zip(sites, (raised / raised.sum()).tolist(), strict=True))  # w_i


NEEDS: Mapping[str, frozenset[str]] = {"samples": frozenset({"images"})}
"""Scalars that a rule needs of every update, besides those that all bring."""

WEIGHTS: Mapping[str, Callable[[Scalars, AggregationSettings], dict[str, float]]] = {
    "uniform": uniform_weights,
    "samples": sample_weights,
    "uaw": uaw_weights,
}


def site_weights(scalars: Scalars, settings: AggregationSettings) -> dict[str, float]:
    """Weights of the sites by the chosen rule; they are positive and sum to 1."""
    return WEIGHTS[settings.rule](scalars, settings)
