"""FedEE's formulae against its own Table 12 and closed cases, and that an estimate never calls itself metered."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from fedretina.errors import SettingsError
from fedretina_papers.costs.energy import Energy, GridSettings, added, communication, estimated, footprint

GRID = GridSettings(router_w=10, idle_w=20, up_mbit_s=8, down_mbit_s=80)
# Watts, seconds and watt hours of a round as FedEE's Table 12 prints them, its rounds, and CO2e in g.
TABLE_12 = (
    (96.51, 5.36, 0.14, 1.45, 10, 0.41),
    (134.14, 1159.53, 43.21, 2030.90, 47, 570.68),
    (133.00, 1095.32, 40.47, 1902.16, 47, 534.51),
    (156.03, 38.15, 1.65, 53.30, 32, 14.98),
)


@pytest.mark.parametrize(("watts", "seconds", "wh", "total", "rounds", "grams"), TABLE_12)
def test_table_12_of_fedee(watts, seconds, wh, total, rounds, grams):
    assert estimated([seconds], watts, "printed").wh == pytest.approx(wh, abs=0.0051)
    whole = estimated([seconds] * rounds, watts, "printed")
    assert whole.wh == pytest.approx(total, rel=0.01)  # the rest is communication
    emitted = footprint(Energy(total, False, "printed"), Energy(0, False, "printed"), GRID)
    assert emitted.co2e_g == pytest.approx(grams, rel=0.003, abs=0.006)


def test_power_by_site_and_by_round():
    seconds = [[10, 20], [30, 40]]
    assert estimated(seconds, 36, "").wh == pytest.approx(1.0)
    assert estimated(seconds, [36, 72], "").wh == pytest.approx((40 * 36 + 60 * 72) / 3600)
    assert estimated(seconds, [[0, 0], [0, 90]], "").wh == pytest.approx(1.0)
    assert estimated([], 36, "").wh == 0


def test_communication_up_and_down():
    # 1 MB up at 8 Mbit/s takes a second, 10 MB down at 80 Mbit/s another; 30 W.
    assert communication(1e6, 10e6, GRID).wh == pytest.approx(2 * 30 / 3600)
    size, both = 5e6, communication(5e6, 5e6, GRID)
    assert both.wh == pytest.approx(8 * size * (1 / 80e6 + 1 / 8e6) * (10 + 20) / 3600)  # Eq. 10 as printed
    assert communication(6 * size, 6 * size, GRID).wh == pytest.approx(6 * both.wh)
    assert communication(0, 0, GRID).wh == 0


def test_a_footprint_has_the_building_and_the_grid_in_it():
    grid = GRID.model_copy(update={"pue": 1.5, "co2e_g_per_kwh": 400.0})
    found = footprint(Energy(1000, True, "metered: x"), Energy(100, False, "estimated: y"), grid)
    assert (found.total_wh, found.co2e_g, found.metered) == (1600, pytest.approx(640), True)


def test_an_estimate_never_calls_itself_metered():
    guess = estimated([10], 65, "65 W, rated")
    assert guess == (pytest.approx(650 / 3600), False, "estimated: 65 W, rated")
    assert not communication(1, 1, GRID).metered
    assert communication(1, 1, GRID).source == "estimated: 30 W at 8 Mbit/s up and 80 down"
    both = added([Energy(1, True, "metered: a"), guess, guess])
    assert not both.metered
    assert both.source == "metered: a; estimated: 65 W, rated"
    assert not footprint(guess, guess, GRID).metered
    assert added([Energy(1, True, "metered: a"), Energy(2, True, "metered: b")]).metered
    assert added([]) == (0, False, "nothing")


@pytest.mark.parametrize(
    ("seconds", "watts"), [([-1], 1), ([1], -1), ([math.nan], 1), ([1, 2], [1, 2, 3]), (1, [1, 2])]
)
def test_unfit_times_and_powers(seconds, watts):
    with pytest.raises(SettingsError):
        estimated(seconds, watts, "")


def test_unfit_bytes_and_settings():
    with pytest.raises(SettingsError):
        communication(-1, 0, GRID)
    for words in ({"pue": 0.9}, {"up_mbit_s": 0}, {"co2e_g_per_kwh": -1}, {"colour": "green"}):
        with pytest.raises(ValidationError):
            GridSettings(**{"router_w": 10, "idle_w": 20, "up_mbit_s": 8, "down_mbit_s": 80, **words})
