"""Energy counters on a made powercap folder: what is counted, wrapping, and machines without a meter."""

from __future__ import annotations

import ctypes

import pytest

from fedretina.errors import StateError
from fedretina_papers.costs import meters
from fedretina_papers.costs.meters import Meter, NvmlCounter, counters


@pytest.fixture
def powercap(tmp_path):
    for folder, name in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "psys"),
    ):
        domain = tmp_path / folder
        domain.mkdir()
        (domain / "name").write_text(f"{name}\n")
        (domain / "max_energy_range_uj").write_text("262143328850\n")
        (domain / "energy_uj").write_text("1000000\n")
    (tmp_path / "intel-rapl").mkdir()
    return tmp_path


def put(powercap, domain, joules):
    (powercap / domain / "energy_uj").write_text(f"{int(joules * 1e6)}\n")


def test_packages_and_memory_are_counted_once(powercap):
    found = counters(powercap, cards=())
    assert [one.name for one in found] == ["RAPL package-0", "RAPL dram"]
    with Meter(found) as meter:
        put(powercap, "intel-rapl:0", 3601)
        put(powercap, "intel-rapl:0:0", 9999)
        put(powercap, "intel-rapl:0:1", 7201)
    assert meter.energy == (pytest.approx(3.0), True, "metered: RAPL package-0, RAPL dram")


def test_a_counter_that_wraps_goes_on(powercap):
    put(powercap, "intel-rapl:0", 262000)
    with Meter(counters(powercap, cards=())[:1]) as meter:
        put(powercap, "intel-rapl:0", 100)
        meter.sample()
        assert meter.energy.wh == pytest.approx((262143.32885 - 262000 + 100) / 3600)
        put(powercap, "intel-rapl:0", 200)
    assert meter.energy.wh == pytest.approx((262143.32885 - 262000 + 200) / 3600)
    with meter:
        pass
    assert meter.energy.wh == 0


def test_what_cannot_be_read_is_no_meter(powercap, tmp_path):
    (powercap / "intel-rapl:0" / "energy_uj").unlink()
    (powercap / "intel-rapl:0:1" / "max_energy_range_uj").write_text("much\n")
    assert counters(powercap, cards=()) == []
    assert counters(tmp_path / "none", cards=()) == []
    with pytest.raises(StateError, match="no energy meter"):
        Meter([])


class Library:
    """Answers as NVML does, for one card that counts and one that does not."""

    def __init__(self):
        self.millijoules = 5_000

    def nvmlInit_v2(self):  # noqa: N802
        return 0

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, count):  # noqa: N802
        if handle.value != 1:
            return 3  # not supported
        count._obj.value = self.millijoules
        return 0


def test_cards_count_in_millijoules(monkeypatch, tmp_path):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    found = counters(tmp_path)
    assert [one.name for one in found] == ["NVML GPU 0"]
    with Meter(found) as meter:
        library.millijoules += 7_200_000
    assert meter.energy == (pytest.approx(2.0), True, "metered: NVML GPU 0")
    with pytest.raises(OSError, match="answered 3"):
        NvmlCounter(library, 1)


def test_no_driver_is_no_card(monkeypatch, tmp_path):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert counters(tmp_path) == []
    assert meters.counters(tmp_path, cards=[0]) == []
