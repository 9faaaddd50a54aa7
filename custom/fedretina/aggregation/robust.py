"""The choice of a robust rule: how the sites' values are combined, beside how the sites are weighed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fedretina.aggregation.combining import Accepted, Combined, weighted_mean
from fedretina.aggregation.krum import krum
from fedretina.aggregation.norm_bound import norm_bound
from fedretina.aggregation.trimmed import median, trimmed_mean
from fedretina.errors import QuorumError

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

COMBINE: Mapping[RobustName, Callable[[Accepted, RobustSettings], Combined]] = MappingProxyType(
    {
        "none": lambda accepted, settings: weighted_mean(accepted),
        "norm_bound": lambda accepted, settings: norm_bound(accepted, settings.bound, settings.limit),
        "trimmed_mean": lambda accepted, settings: trimmed_mean(accepted, settings.hostile),
        "median": lambda accepted, settings: median(accepted),
        "krum": lambda accepted, settings: krum(accepted, settings.hostile, settings.keep),
    }
)


def combine(accepted: Accepted, settings: RobustSettings) -> Combined:
    """Combine a round's updates by the chosen rule.

    Args:
        accepted: The round.
        settings: The rule.

    Raises:
        QuorumError: Too few updates for what the rule promises. A run's quorum is never lower, so this is for those who
            call it themselves.
    """
    if len(accepted.weights) < settings.least:
        raise QuorumError(
            f"{settings.name!r} against {settings.hostile} hostile sites needs {settings.least} updates, there are "
            f"{len(accepted.weights)}: ask more sites, or set aggregation.robust.hostile lower."
        )
    return COMBINE[settings.name](accepted, settings)
