"""The choice of a robust rule: how the sites' values are combined, beside how the sites are weighed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fedretina.aggregation.combining import Accepted, Combined, weighted_mean
from fedretina.aggregation.krum import krum
from fedretina.aggregation.norm_bound import norm_bound
from fedretina.aggregation.trimmed import median, trimmed_mean
from fedretina.errors import QuorumError
from fedretina.settings.aggregation import RobustName, RobustSettings

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
