"""The choice of a correction, and the table that builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fedretina.corrections.correction import Correction
from fedretina.corrections.feddc import FedDc, FedDcSettings
from fedretina.corrections.feddyn import FedDyn, FedDynSettings
from fedretina.corrections.fedprox import FedProx, FedProxSettings
from fedretina.corrections.moon import Moon, MoonSettings
from fedretina.corrections.scaffold import Scaffold, ScaffoldSettings
from fedretina.errors import SettingsError
from fedretina.local.optimiser import OptimiserSettings

CorrectionName = Literal["none", "fedprox", "scaffold", "feddyn", "feddc", "moon"]


class CorrectionSettings(BaseModel):
    """How drift between sites is held back.

    Attributes:
        name: "none", "fedprox" (a spring to the aggregate), "scaffold" (control variates), "feddyn" and "feddc" (a
            spring with the site's drift), "moon" (a contrast of features). Settings of the others are not read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: CorrectionName = "none"
    fedprox: FedProxSettings = FedProxSettings()
    scaffold: ScaffoldSettings = ScaffoldSettings()
    feddyn: FedDynSettings = FedDynSettings()
    feddc: FedDcSettings = FedDcSettings()
    moon: MoonSettings = MoonSettings()

    @property
    def travels(self) -> bool:
        """Whether a control a parameter goes beside the weights, both ways."""
        return TRAVELS[self.name]

    @property
    def has_server_half(self) -> bool:
        """Whether the server moves the aggregate beyond the mean of the sites."""
        return self.name in HAVE_SERVER_HALF


HAVE_SERVER_HALF: frozenset[CorrectionName] = frozenset({"scaffold", "feddyn", "feddc"})

TRAVELS: Mapping[CorrectionName, bool] = MappingProxyType(
    {
        "none": Correction.travels,
        "fedprox": FedProx.travels,
        "scaffold": Scaffold.travels,
        "feddyn": FedDyn.travels,
        "feddc": FedDc.travels,
        "moon": Moon.travels,
    }
)

CORRECTIONS: Mapping[CorrectionName, Callable[[CorrectionSettings, OptimiserSettings], Correction]] = MappingProxyType(
    {
        "none": lambda settings, optimiser: Correction(),
        "fedprox": lambda settings, optimiser: FedProx(settings.fedprox),
        "scaffold": lambda settings, optimiser: Scaffold(settings.scaffold, optimiser.optimizer, optimiser.momentum),
        "feddyn": lambda settings, optimiser: FedDyn(settings.feddyn),
        "feddc": lambda settings, optimiser: FedDc(settings.feddc),
        "moon": lambda settings, optimiser: Moon(settings.moon),
    }
)


def build_correction(settings: CorrectionSettings, optimiser: OptimiserSettings) -> Correction:
    """Build the correction that the settings name; it has no state of its own.

    Args:
        settings: The choice.
        optimiser: The optimiser in use, which SCAFFOLD must know.

    Raises:
        SettingsError: SCAFFOLD's "option2" updates with an optimiser for which they are wrong.
    """
    exact = optimiser.optimizer == "sgd" and optimiser.momentum == 0 and optimiser.weight_decay == 0
    if settings.name == "scaffold" and settings.scaffold.update == "option2" and not exact:
        raise SettingsError(
            "scaffold.update 'option2' is right for plain SGD alone, but the optimiser has momentum, decay or is Adam: "
            "use 'mean_grad'."
        )
    if settings.name == "scaffold" and settings.scaffold.update == "option2_fednova" and optimiser.optimizer != "sgd":
        raise SettingsError("scaffold.update 'option2_fednova' is for SGD with momentum: use 'mean_grad' with Adam.")
    return CORRECTIONS[settings.name](settings, optimiser)
