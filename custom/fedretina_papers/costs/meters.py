"""Energy meters that a machine may have: RAPL of the processor, NVML of NVIDIA's cards."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from fedretina.errors import StateError
from fedretina_papers.costs.energy import Energy

POWERCAP = Path("/sys/class/powercap")
_NVML = "libnvidia-ml.so.1"


class Counter(Protocol):
    """A meter that counts up.

    Attributes:
        name: What it meters.
        wraps_at: Joules at which it begins again at 0; None where it does not.
    """

    name: str
    wraps_at: float | None

    def joules(self) -> float:
        """The count now.

        Raises:
            OSError: The meter cannot be read any more.
        """
        ...


class RaplCounter:
    """A RAPL domain of Linux: the processor package with its cores, or the memory beside it.

    Args:
        folder: The domain's folder under /sys/class/powercap.

    Raises:
        OSError: It cannot be read; since 2020 most kernels let root alone read it.
        ValueError: It does not hold what a domain holds.
    """

    def __init__(self, folder: Path) -> None:
        self._energy = folder / "energy_uj"
        self.name = f"RAPL {(folder / 'name').read_text(encoding='ascii').strip()}"
        self.wraps_at: float | None = int((folder / "max_energy_range_uj").read_text(encoding="ascii")) / 1e6
        self.joules()

    def joules(self) -> float:
        """See `Counter`."""
        return int(self._energy.read_text(encoding="ascii")) / 1e6


class NvmlCounter:
    """A card's own count of its energy (Volta and later), of all that runs on it.

    Args:
        library: The NVML library, initialised.
        index: Number of the card as NVML counts, which CUDA_VISIBLE_DEVICES does not change.

    Raises:
        OSError: There is no such card, or it does not count.
    """

    def __init__(self, library: ctypes.CDLL, index: int) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        _checked(library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._handle)), "nvmlDeviceGetHandleByIndex")
        self.name = f"NVML GPU {index}"
        self.wraps_at: float | None = None
        self.joules()

    def joules(self) -> float:
        """See `Counter`."""
        count = ctypes.c_ulonglong()
        answer = self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(count))
        _checked(answer, "nvmlDeviceGetTotalEnergyConsumption")
        return count.value / 1000  # millijoules


class Meter:
    """Counts energy between entering and leaving a `with` block.

    It counts the whole part, whoever used it, and only the parts that have a counter: mains, discs and fans have none.

    Args:
        counters: See `counters`; at least one.

    Raises:
        StateError: There is no counter. Estimate instead, and say so.
    """

    def __init__(self, counters: Sequence[Counter]) -> None:
        if not counters:
            raise StateError("this machine has no energy meter that can be read: estimate from a rated power instead.")
        self._counters = tuple(counters)
        self._last: list[float] = []
        self._spent = 0.0

    def __enter__(self) -> Self:
        self._last = [counter.joules() for counter in self._counters]
        self._spent = 0.0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sample()

    def sample(self) -> None:
        """Read the counters; do so more often than the fastest one wraps, at every round of a run (RAPL: some minutes).

        Raises:
            OSError: A counter cannot be read any more.
        """
        now = [counter.joules() for counter in self._counters]
        for counter, last, joules in zip(self._counters, self._last, now, strict=True):
            passed = joules - last
            self._spent += passed + counter.wraps_at if passed < 0 and counter.wraps_at else max(0.0, passed)
        self._last = now

    @property
    def energy(self) -> Energy:
        """What was spent up to the last sample."""
        return Energy(self._spent / 3600, True, f"metered: {', '.join(counter.name for counter in self._counters)}")


def counters(powercap: Path = POWERCAP, cards: Sequence[int] | None = None) -> list[Counter]:
    """The meters of this machine that can be read; empty where there is none, as in most containers.

    Args:
        powercap: Folder of the powercap interface.
        cards: Cards to count, by NVML's number; all by default, () for none.
    """
    found: list[Counter] = []
    for folder in sorted(powercap.glob("intel-rapl:*")):  # AMD's domains have this name too
        try:
            counter = RaplCounter(folder)
        except (OSError, ValueError):
            continue
        # Cores and graphics are parts of their package, and "psys" holds the package: each would count twice.
        if counter.name.startswith(("RAPL package", "RAPL dram")):
            found.append(counter)
    return [*found, *_cards(cards)]


def _cards(wanted: Sequence[int] | None) -> list[Counter]:
    if wanted is not None and not wanted:
        return []
    found: list[Counter] = []
    try:
        library = ctypes.CDLL(_NVML)
        _checked(library.nvmlInit_v2(), "nvmlInit")
        count = ctypes.c_uint()
        _checked(library.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
    except (OSError, AttributeError):  # no driver, or one of another age
        return []
    for index in range(count.value) if wanted is None else wanted:
        try:
            found.append(NvmlCounter(library, index))
        except OSError:
            continue
    return found


def _checked(code: int, call: str) -> None:
    if code != 0:
        raise OSError(f"{call} answered {code}")
