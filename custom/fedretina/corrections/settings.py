"""The table of corrections, and what builds the one that a run chose."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedretina.corrections.correction import Correction
from fedretina.corrections.feddc import FedDc
from fedretina.corrections.feddyn import FedDyn
from fedretina.corrections.fedprox import FedProx
from fedretina.corrections.moon import Moon
from fedretina.corrections.scaffold import Scaffold
from fedretina.errors import SettingsError
from fedretina.settings.correction import (
    CorrectionName,
    CorrectionSettings,
)
from fedretina.settings.training import OptimiserSettings

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
        SettingsError: The correction is wrong with that optimiser, or does what its settings do not say: checks of a
            run, which know the settings alone, would then guard nothing.
    """
    chosen = CORRECTIONS[settings.name]
    if (chosen.travels, chosen.has_server_half()) != (settings.travels, settings.has_server_half):
        raise SettingsError(
            f"correction {settings.name!r} does not do what its settings say: set travels to {chosen.travels} and "
            f"has_server_half to {chosen.has_server_half()} there."
        )
    return chosen.of(settings.own, optimiser)
