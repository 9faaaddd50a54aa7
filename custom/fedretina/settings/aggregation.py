"""How the server weighs and combines what the sites send, which sites it asks, and which round's model it keeps."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, model_validator

from fedretina.settings.choice import Choice, GrownSettings, ReadBy, ReadSettings


class RuleSettings(Choice):
    """How the sites are weighed; "uaw" where a file names no rule.

    Attributes:
        personal: Whether each site gets a model of its own, and statistics are asked for before training.
        alike: Whether every site weighs the same, whatever it says of itself.
        needs: Scalars that the rule needs of every update, besides those that all bring.
    """

    default: ClassVar[str | None] = "uaw"
    personal: ClassVar[bool] = False
    alike: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    name: str


class UniformSettings(RuleSettings):
    """Every site alike: 1/N.

    Attributes:
        name: "uniform".
    """

    alike: ClassVar[bool] = True
    name: Literal["uniform"] = "uniform"


class SamplesSettings(RuleSettings):
    """By training images: n_i / sum n.

    Attributes:
        name: "samples".
    """

    needs: ClassVar[frozenset[str]] = frozenset({"images"})
    name: Literal["samples"] = "samples"


class UawSettings(RuleSettings):
    """By uncertainty: softmax of theta (FedUAA, section 2.2).

    Attributes:
        name: "uaw".
        temperature: Theta is divided by it before the softmax. 1 is the paper; smaller sharpens. With five sites
            and theta in (0, 1], the weights of the paper lie in [0.084, 0.405]: close to uniform.
    """

    name: Literal["uaw"] = "uaw"
    temperature: float = Field(default=1.0, gt=0, le=100)


class SimilaritySettings(RuleSettings):
    """A model per site, mixed by how alike BatchNorm statistics are (FedAP), which sites send once before training.

    A site whose training images are of fewer patients than its `data.min_count` sends none. It trains as the others do,
    and gets the plain mean of all models; those of the others are mixed without its own.

    Attributes:
        name: "similarity".
        own_share: Weight m of a site in its own model; 0.5 in FedAP.
    """

    personal: ClassVar[bool] = True
    name: Literal["similarity"] = "similarity"
    own_share: float = Field(default=0.5, ge=0, le=1)


class RobustSettings(Choice):
    """What a hostile or broken site can do to the aggregate.

    Attributes:
        guards: Whether it withstands anything; else it is the weighted mean, which any site decides.
        weighs: Whether the weights of the sites are read; else every site counts alike.
    """

    default: ClassVar[str | None] = "none"
    guards: ClassVar[bool] = True
    weighs: ClassVar[bool] = False
    name: str

    @property
    def least(self) -> int:
        """Fewest accepted updates with which the rule withstands what it promises."""
        return 1


class NotRobustSettings(RobustSettings):
    """The weighted mean: one hostile site decides it.

    Attributes:
        name: "none".
    """

    guards: ClassVar[bool] = False
    weighs: ClassVar[bool] = True
    name: Literal["none"] = "none"


class HostileSettings(RobustSettings):
    """What the rules against hostile sites have in common.

    Attributes:
        hostile: f, how many hostile sites are to be withstood. It sets the least quorum, 2f + 1.
    """

    hostile: int = Field(default=1, ge=0, le=1000)

    @property
    def least(self) -> int:
        """See `RobustSettings.least`."""
        return 2 * self.hostile + 1


class NormBoundSettings(HostileSettings):
    """Shortens updates that are longer than the others' (Sun et al. 2019), and keeps the weights of the rule.

    Attributes:
        name: "norm_bound".
        hostile: f, how many hostile sites are to be withstood. It sets the least quorum, 2f + 1; 1 with a `limit`.
        bound: Longest update, over the median length of the round's updates.
        limit: Longest update as a length of its own, as in the paper, instead of `bound` and `hostile`.
    """

    weighs: ClassVar[bool] = True
    name: Literal["norm_bound"] = "norm_bound"
    bound: float = Field(default=1.5, gt=0, le=1000)
    limit: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_of_two_bounds(self) -> Self:
        if self.limit is not None and self.bound != NormBoundSettings.model_fields["bound"].default:
            raise ValueError(f"bound is {self.bound:g}, but limit is given and replaces it: leave one of the two out.")
        if self.limit is not None and self.hostile != HostileSettings.model_fields["hostile"].default:
            raise ValueError(
                f"hostile is {self.hostile}, but a limit holds for every update whatever their number, so nothing "
                "reads it: leave one of the two out."
            )
        return self

    @property
    def least(self) -> int:
        """See `RobustSettings.least`."""
        return super().least if self.limit is None else 1


class TrimmedMeanSettings(HostileSettings):
    """Leaves out the extremes of each number (Yin et al. 2018); every site counts alike, so it asks for `uniform`.

    Attributes:
        name: "trimmed_mean".
        hostile: f, how many are left out at each end. It sets the least quorum, 2f + 1.
    """

    name: Literal["trimmed_mean"] = "trimmed_mean"


class MedianSettings(HostileSettings):
    """Takes the median of each number (Yin et al. 2018); every site counts alike, so it asks for `uniform`.

    Attributes:
        name: "median".
        hostile: f, how many hostile sites are to be withstood. It sets the least quorum, 2f + 1.
    """

    name: Literal["median"] = "median"


class KrumSettings(HostileSettings):
    """Takes the update that is closest to most others (Blanchard et al. 2017); it asks for `uniform`.

    Attributes:
        name: "krum".
        hostile: f, how many hostile sites are to be withstood. It sets the least quorum: 2f + 3, or f + keep if that
            is more.
        keep: How many sites are taken, for the mean of them: 1 is Krum, more is m-Krum.
    """

    name: Literal["krum"] = "krum"
    keep: int = Field(default=1, ge=1, le=1000)

    @property
    def least(self) -> int:
        """See `RobustSettings.least`."""
        return max(2 * self.hostile + 3, self.hostile + self.keep)


class ServerOptimiserSettings(Choice):
    """How far the server goes from the last aggregate towards what the sites' values combine to.

    Attributes:
        remembers: Whether it keeps something of earlier rounds, so that a round's model is more than that round's.
    """

    default: ClassVar[str | None] = "none"
    remembers: ClassVar[bool] = True
    name: str


class NoServerOptimiserSettings(ServerOptimiserSettings):
    """All the way: what the sites' values combine to is the next model (FedAvg).

    Attributes:
        name: "none".
    """

    remembers: ClassVar[bool] = False
    name: Literal["none"] = "none"


class FedAvgMSettings(ServerOptimiserSettings):
    """Momentum at the server: FedAvgM (Hsu et al. 2019).

    Attributes:
        name: "fedavgm".
        momentum: beta: what is left of the last round's velocity. 0 with a rate of 1 is FedAvg.
        rate: eta, the server's rate. In the long run a round's way is 1 / (1 - momentum) times as long as the mean's,
            so momentum 0.9 wants a lower rate here or at the sites.
    """

    name: Literal["fedavgm"] = "fedavgm"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    rate: float = Field(default=1.0, gt=0, le=10)


class FedAdamSettings(ServerOptimiserSettings):
    """Adam at the server: FedAdam (Reddi et al. 2021, Algorithm 2).

    Attributes:
        name: "fedadam".
        rate: eta, the server's rate: about how far each number goes in a round. The paper tunes 0.001 to 10.
        beta_1: Of the mean way, 0.9 in the paper.
        beta_2: Of its square, 0.99 in the paper.
        tau: Added to the root of the square; small adapts more. The paper tunes 1e-5 to 0.1, and 1e-3 does for most.
    """

    name: Literal["fedadam"] = "fedadam"
    rate: float = Field(default=0.01, gt=0, le=10)
    beta_1: float = Field(default=0.9, ge=0, lt=1)
    beta_2: float = Field(default=0.99, ge=0, lt=1)
    tau: float = Field(default=1e-3, gt=0, le=1)


class AggregationSettings(GrownSettings):
    """Choice on the aggregation axis.

    Attributes:
        rule: How the sites are weighed.
        proportion: An update is refused by name when its change is more than this many times the median change of the
            other sites and a tenth of the length of the model that it was sent, whichever is larger, in any kind of
            tensors. Honest updates of real sites measured about 1, the worst of a run that diverges 66
            (docs/robust_rules.md). null takes every finite update.
        robust: How the values are combined once the sites are weighed; by default their weighted mean.
        optimiser: How far the server goes towards that; by default all the way. It moves the parameters that travel,
            and leaves BatchNorm's running statistics the mean that they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    newer: ClassVar[frozenset[str]] = frozenset({"optimiser"})
    rule: SerializeAsAny[RuleSettings] = UawSettings()
    proportion: float | None = Field(default=300.0, gt=1, le=1e6)
    robust: SerializeAsAny[RobustSettings] = NotRobustSettings()
    optimiser: SerializeAsAny[ServerOptimiserSettings] = NoServerOptimiserSettings()

    @model_validator(mode="after")
    def _a_robust_rule_fits_the_weights(self) -> Self:
        rule, robust = self.rule, self.robust
        if self.personal and robust.guards:
            raise ValueError(
                f"robust {robust.name!r} makes one model of all updates, but rule {rule.name!r} keeps one per site: "
                "choose another of the two."
            )
        if not robust.weighs and not rule.alike:
            raise ValueError(
                f"robust {robust.name!r} counts every site alike, but rule {rule.name!r} weighs them by what they say "
                "of themselves, which a hostile site forges: set rule to 'uniform', or robust.name to 'norm_bound', "
                "which keeps the weights."
            )
        return self

    @model_validator(mode="after")
    def _an_optimiser_steps_towards_a_mean(self) -> Self:
        if self.optimiser.remembers and self.personal:
            raise ValueError(
                f"optimiser {self.optimiser.name!r} moves one model for all sites, but rule {self.rule.name!r} keeps "
                "one per site: choose another of the two."
            )
        if self.optimiser.remembers and self.robust.guards:
            raise ValueError(
                f"optimiser {self.optimiser.name!r} carries what a round gave on through later ones, but what robust "
                f"{self.robust.name!r} promises holds for the model of each round: choose another of the two."
            )
        return self

    @property
    def personal(self) -> bool:
        """Whether each site gets a model of its own, and statistics are asked for before training."""
        return self.rule.personal


class SamplingSettings(BaseModel):
    """Client sampling.

    Attributes:
        fraction: Share of the enrolled sites that train in a round; 1 asks all. Below 1 only the last model is
            measured by all sites, so a run ends with its last model instead of its best.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    fraction: float = Field(default=1.0, gt=0, le=1)


class ChoiceSettings(ReadSettings):
    """How the round is chosen.

    Attributes:
        model: "best" ends with the round of the best mean validation AUC (`by`) over the sites, rounds that a site
            missed being compared over the others; "last" with the last round, for small validation splits, whose best
            round is best by luck, and schedules that end at 0.
        window: Rounds over which the mean validation AUC is averaged, the round itself and those before it. 1 is what
            FedUAA does; a few steady the choice where validation splits are small. A round is chosen as soon as it is
            the best, so that its sites keep what belongs to it: later rounds have no part in its figure. Refused where
            `sampling.fraction` is below 1.
        by: The validation AUC that the mean is taken of. "supported": over the grades of which a site's validation has
            `report.least_patients` patients with and without it; where no grade has, over all that are present. "auc":
            over all grades present in any case, as FedUAA does: there a grade with one image weighs as much as any
            other, and may choose the round. Refused where `sampling.fraction` is below 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    model: Literal["best", "last"] = "best"
    window: Annotated[int, Field(ge=1, le=100), ReadBy("model", ("best",))] = 1
    by: Annotated[Literal["supported", "auc"], ReadBy("model", ("best",))] = "supported"
