"""How the server weighs and combines what the sites send, which sites it asks, and which round's model it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

RobustName = Literal["none", "norm_bound", "trimmed_mean", "median", "krum"]


class RobustSettings(BaseModel):
    """What a hostile or broken site can do to the aggregate. Settings that a rule does not name are not read by it.

    Attributes:
        name: `none`, the weighted mean: one hostile site decides it. `norm_bound` shortens updates that are longer
            than the others' (Sun et al. 2019) and keeps the weights of `aggregation.rule`. `trimmed_mean` and `median`
            leave out the extremes of each number (Yin et al. 2018), `krum` takes the update that is closest to most
            others (Blanchard et al. 2017); these three count every site alike, so they ask for `rule: uniform`.
        hostile: f, how many hostile sites are to be withstood. It sets the least quorum: 2f + 1, for `krum` 2f + 3 or
            f + keep if that is more. `trimmed_mean` leaves out f at each end.
        bound: Longest update under `norm_bound`, over the median length of the round's updates.
        limit: Longest update under `norm_bound` as a length of its own, as in the paper; `bound` is then not read.
        keep: How many sites `krum` takes, for the mean of them: 1 is Krum, more is m-Krum.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: RobustName = "none"
    hostile: int = Field(default=1, ge=0, le=1000)
    bound: float = Field(default=1.5, gt=0, le=1000)
    limit: float | None = Field(default=None, gt=0)
    keep: int = Field(default=1, ge=1, le=1000)

    @property
    def least(self) -> int:
        """Fewest accepted updates with which the rule withstands what it promises."""
        return LEAST[self.name](self)

    @property
    def weighs(self) -> bool:
        """Whether the weights of the sites are read; else every site counts alike."""
        return self.name in WEIGHING


WEIGHING: frozenset[RobustName] = frozenset({"none", "norm_bound"})

LEAST: Mapping[RobustName, Callable[[RobustSettings], int]] = MappingProxyType(
    {
        "none": lambda settings: 1,
        "norm_bound": lambda settings: 2 * settings.hostile + 1 if settings.limit is None else 1,
        "trimmed_mean": lambda settings: 2 * settings.hostile + 1,
        "median": lambda settings: 2 * settings.hostile + 1,
        "krum": lambda settings: max(2 * settings.hostile + 3, settings.hostile + settings.keep),
    }
)


class AggregationSettings(BaseModel):
    """Choice on the aggregation axis.

    Attributes:
        rule: `uniform` 1/N; `samples` n_i / sum n; `uaw` softmax of theta (FedUAA, section 2.2); `similarity` a model
            per site, mixed by how alike BatchNorm statistics are (FedAP), which the sites send once before training.
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


class SamplingSettings(BaseModel):
    """Client sampling.

    Attributes:
        fraction: Share of the enrolled sites that train in a round; 1 asks all. Below 1 only the last model is
            measured by all sites, so a run ends with its last model instead of its best.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    fraction: float = Field(default=1.0, gt=0, le=1)


class ChoiceSettings(BaseModel):
    """How the round is chosen.

    Attributes:
        window: Rounds over which the mean validation AUC is averaged, the round itself and those before it. 1 is what
            FedUAA does; a few steady the choice where validation splits are small. A round is chosen as soon as it is
            the best, so that its sites keep what belongs to it: later rounds have no part in its figure.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    window: int = Field(default=1, ge=1, le=100)
