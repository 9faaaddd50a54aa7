"""The choice of a robust rule: how the sites' values are combined, beside how the sites are weighed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedretina.aggregation.combining import Accepted, Combined, weighted_mean
from fedretina.aggregation.krum import krum
from fedretina.aggregation.norm_bound import norm_bound
from fedretina.aggregation.trimmed import median, trimmed_mean
from fedretina.errors import QuorumError
from fedretina.parts import Register
from fedretina.settings.aggregation import (
    KrumSettings,
    MedianSettings,
    NormBoundSettings,
    NotRobustSettings,
    RobustSettings,
    TrimmedMeanSettings,
)

robust: Register[Callable[[Accepted, Any], Combined]] = Register("fedretina.aggregation.robust")
"""Registers the function below it as the robust rule of some settings."""


@robust(NotRobustSettings)
def _weighted_mean(accepted: Accepted, settings: NotRobustSettings) -> Combined:
    return weighted_mean(accepted)


@robust(NormBoundSettings)
def _norm_bound(accepted: Accepted, settings: NormBoundSettings) -> Combined:
    return norm_bound(accepted, settings.bound, settings.limit)


@robust(TrimmedMeanSettings)
def _trimmed_mean(accepted: Accepted, settings: TrimmedMeanSettings) -> Combined:
    return trimmed_mean(accepted, settings.hostile)


@robust(MedianSettings)
def _median(accepted: Accepted, settings: MedianSettings) -> Combined:
    return median(accepted)


@robust(KrumSettings)
def _krum(accepted: Accepted, settings: KrumSettings) -> Combined:
    return krum(accepted, settings.hostile, settings.keep)


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
            f"{settings.name!r} as it is set needs {settings.least} updates, there are "
            f"{len(accepted.weights)}: ask more sites, or set aggregation.robust.hostile lower."
        )
    return robust.of(settings)(accepted, settings)
