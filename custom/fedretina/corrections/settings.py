"""The choice of a correction, and the table of their classes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fedretina.corrections.correction import Correction
from fedretina.corrections.feddc import FedDc, FedDcSettings
from fedretina.corrections.feddyn import FedDyn, FedDynSettings
from fedretina.corrections.fedprox import FedProx, FedProxSettings
from fedretina.corrections.moon import Moon, MoonSettings
from fedretina.corrections.scaffold import Scaffold, ScaffoldSettings
from fedretina.local.optimiser import OptimiserSettings

CorrectionName = Literal["none", "fedprox", "scaffold", "feddyn", "feddc", "moon"]


class CorrectionSettings(BaseModel):
    """How drift between sites is held back.

    Attributes:
        name: "none", "fedprox" (a proximal term), "scaffold" (control variates), "feddyn" and "feddc" (a proximal
            term with the site's drift), "moon" (a contrast of features). Settings of the others are not read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: CorrectionName = "none"
    fedprox: FedProxSettings = FedProxSettings()
    scaffold: ScaffoldSettings = ScaffoldSettings()
    feddyn: FedDynSettings = FedDynSettings()
    feddc: FedDcSettings = FedDcSettings()
    moon: MoonSettings = MoonSettings()

    @property
    def chosen(self) -> type[Correction]:
        """The class of the correction; what it can do is read off it."""
        return CORRECTIONS[self.name]

    @property
    def travels(self) -> bool:
        """Whether a control a parameter goes beside the weights, both ways."""
        return self.chosen.travels

    @property
    def has_server_half(self) -> bool:
        """Whether the server moves the aggregate beyond the mean of the sites."""
        return self.chosen.has_server_half()


CORRECTIONS: Mapping[CorrectionName, type[Correction]] = MappingProxyType(
    {
        "none": Correction,
        "fedprox": FedProx,
        "scaffold": Scaffold,
        "feddyn": FedDyn,
        "feddc": FedDc,
        "moon": Moon,
    }
)


def build_correction(settings: CorrectionSettings, optimiser: OptimiserSettings) -> Correction:
    """Build the correction that the settings name; it has no state of its own.

    Args:
        settings: The choice.
        optimiser: The optimiser in use, which SCAFFOLD must know.

    Raises:
        SettingsError: The correction is wrong with that optimiser.
    """
    return settings.chosen.of(getattr(settings, settings.name, None), optimiser)
