"""The choice of an objective, and the table that builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fedretina.losses.cross_entropy import CrossEntropyObjective, FocalObjective
from fedretina.losses.evidential import EvidentialObjective
from fedretina.losses.objective import Objective
from fedretina.losses.tweu import TweuObjective
from fedretina.settings.objective import ObjectiveName, ObjectiveSettings

OBJECTIVES: Mapping[ObjectiveName, Callable[[ObjectiveSettings], Objective]] = MappingProxyType(
    {
        "cross_entropy": lambda settings: CrossEntropyObjective(),
        "evidential": lambda settings: EvidentialObjective(settings.tweu.kl_anneal),
        "tweu": lambda settings: TweuObjective(settings.tweu),
        "focal": lambda settings: FocalObjective(settings.focal),
    }
)


def build_objective(settings: ObjectiveSettings) -> Objective:
    """Build the objective that the settings name.

    Args:
        settings: The choice; pydantic has refused unknown names already.

    Returns:
        An objective without state of its own: one instance serves any number of rounds.
    """
    return OBJECTIVES[settings.name](settings)
