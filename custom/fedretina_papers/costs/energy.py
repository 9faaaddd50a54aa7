"""Energy and CO2 equivalents of federated training by FedEE's formulae (Eqs. 9 to 11, after Qiu et al., JMLR 2023)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field

from fedretina.errors import SettingsError

_HOUR = 3600.0


class Energy(NamedTuple):
    """An amount of energy, and where the number comes from.

    Attributes:
        wh: In watt hours.
        metered: Whether a meter gave it. Where any part was estimated it is False.
        source: The meters by name, or what was assumed; stands wherever the number does.
    """

    wh: float
    metered: bool
    source: str


class Footprint(NamedTuple):
    """Energy and CO2 equivalents of a run.

    Attributes:
        training: Energy at the machines, before the PUE.
        communication: Energy of moving the models; always an estimate.
        total_wh: PUE x training + communication.
        co2e_g: CO2 equivalents, in grams.
        metered: Whether the training's energy was metered. The rest never is.
    """

    training: Energy
    communication: Energy
    total_wh: float
    co2e_g: float
    metered: bool


class GridSettings(BaseModel):
    """What is assumed beside the machines' own energy.

    Attributes:
        co2e_g_per_kwh: Carbon intensity of the grid (c_rate). The default is the one that all rows of FedEE's Table 12
            imply; take your own grid's.
        pue: Power usage effectiveness, energy of the building over that of its machines: 1 counts machines alone, as
            FedEE does; an average data centre has about 1.5.
        router_w: Power of the router while it moves a model (e_r).
        idle_w: Power of the machine that waits for it (e_idle).
        up_mbit_s: Upload speed of a site (U), in 1e6 bit/s.
        down_mbit_s: Download speed of a site (D), in 1e6 bit/s.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    co2e_g_per_kwh: float = Field(default=281.0, ge=0, le=2000)
    pue: float = Field(default=1.0, ge=1, le=5)
    router_w: float = Field(ge=0, le=10_000)
    idle_w: float = Field(ge=0, le=10_000)
    up_mbit_s: float = Field(gt=0)
    down_mbit_s: float = Field(gt=0)


def estimated(seconds: ArrayLike, watts: ArrayLike, what: str) -> Energy:
    """Energy from power that is assumed: T = sum over rounds and sites of t e (Eq. 9).

    Args:
        seconds: Wall-clock time of each round at each site [R, K], or any shape.
        watts: Power of each, of a shape that broadcasts against `seconds`: one number, one a site [K], or all [R, K].
        what: Where the power comes from, such as "65 W, the processor's rated power".

    Returns:
        The energy, marked as not metered.

    Raises:
        SettingsError: A time or power is negative or not finite, or the shapes do not fit.
    """
    try:
        times, powers = np.broadcast_arrays(np.asarray(seconds, dtype=np.float64), np.asarray(watts, dtype=np.float64))
    except ValueError as error:
        raise SettingsError(
            "times and powers do not fit each other: give one power, one a site, or one each."
        ) from error
    if times.shape != np.shape(seconds):
        raise SettingsError("there are more powers than times: give one power, one a site, or one each.")
    for values in (times, powers):
        if values.size and (not np.isfinite(values).all() or np.min(values) < 0):
            raise SettingsError("times and powers must be finite and 0 or above.")
    return Energy(float(np.sum(times * powers) / _HOUR), False, f"estimated: {what}")


def communication(up_bytes: float, down_bytes: float, grid: GridSettings) -> Energy:
    """Energy of moving models: C = sum over rounds and sites of S (1/D + 1/U)(e_r + e_idle) (Eq. 10).

    Eq. 10 has one size S both ways; here up and down are counted apart, as they were measured, and sums over rounds and
    sites will do, since the formula is linear in S.

    Args:
        up_bytes: All bytes from sites to the server.
        down_bytes: All bytes from the server to sites.
        grid: Speeds and powers.

    Raises:
        SettingsError: Bytes are negative or not finite.
    """
    if not (math.isfinite(up_bytes) and math.isfinite(down_bytes)) or min(up_bytes, down_bytes) < 0:
        raise SettingsError("bytes that moved must be finite and 0 or above.")
    seconds = 8 * (up_bytes / (grid.up_mbit_s * 1e6) + down_bytes / (grid.down_mbit_s * 1e6))
    wh = seconds * (grid.router_w + grid.idle_w) / _HOUR
    watts = f"{grid.router_w + grid.idle_w:g} W at {grid.up_mbit_s:g} Mbit/s up and {grid.down_mbit_s:g} down"
    return Energy(wh, False, f"estimated: {watts}")


def footprint(training: Energy, moved: Energy, grid: GridSettings) -> Footprint:
    """Energy and CO2 equivalents: E = c_rate (T + C) (Eq. 11), T times the PUE.

    Args:
        training: Metered or estimated.
        moved: See `communication`.
        grid: Carbon intensity and PUE.
    """
    total = grid.pue * training.wh + moved.wh
    return Footprint(training, moved, total, total / 1000 * grid.co2e_g_per_kwh, training.metered)


def added(parts: Iterable[Energy]) -> Energy:
    """Energies together, such as those of several sites: metered only where every one is, sources side by side."""
    listed = list(parts)
    sources = "; ".join(dict.fromkeys(one.source for one in listed))
    return Energy(
        sum(one.wh for one in listed), bool(listed) and all(one.metered for one in listed), sources or "nothing"
    )
