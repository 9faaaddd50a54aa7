"""The choice of an objective, and the table that builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fedretina.losses.cross_entropy import CrossEntropyObjective
from fedretina.losses.evidential import EvidentialObjective
from fedretina.losses.focal import FocalObjective, FocalSettings
from fedretina.losses.objective import Objective
from fedretina.losses.tweu import TweuObjective, TweuSettings

ObjectiveName = Literal["cross_entropy", "evidential", "tweu", "focal"]


class ObjectiveSettings(BaseModel):
    """Which objective a site minimises.

    Attributes:
        name: "cross_entropy" (BC in FedUAA's Table 2), "evidential" (EU), "tweu" (TWEU, the default: the method of
            this package's first paper) or "focal" (FedEE and FLamby on dermoscopy).
        tweu: Settings of TWEU. "evidential" reads its kl_anneal alone, the others read nothing of it.
        focal: Settings of the focal loss.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ObjectiveName = "tweu"
    tweu: TweuSettings = TweuSettings()
    focal: FocalSettings = FocalSettings()


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
