"""Peak memory of a step, measured in a process that does nothing else."""

from __future__ import annotations

import resource
import sys
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from fedretina.errors import SettingsError, TrainingError
from fedretina_papers.processes import pool

if TYPE_CHECKING:  # the process that measures holds no more than its step needs
    from fedretina_papers.costs.workload import Prepare

_STATUS = Path("/proc/self/status")


class PeakMemory(NamedTuple):
    """Memory of a step, in bytes.

    Attributes:
        step: What network, images and step need at their highest, over what the process held before.
        peak: The highest of all: on the CPU the resident set of the whole process, several hundred MB of which are
            Python and torch; on a GPU what torch's allocator handed out.
        source: Which of the two it is.
    """

    step: int
    peak: int
    source: Literal["resident set", "CUDA allocator"]


def peak_memory(prepare: Prepare, device: Literal["cpu", "cuda"] = "cpu", steps: int = 3) -> PeakMemory:
    """Measure in a fresh process, so that nothing is reused of what this one has freed.

    On the CPU tracemalloc sees none of torch's tensors, so the kernel's high-water mark of the process is read (VmHWM
    of Linux, which unlike `ru_maxrss` does not begin at the parent's). It includes what allocators keep in reserve,
    and differs by some per cent between runs. On a GPU torch's own count is exact; what CUDA itself and its libraries
    hold, several hundred MB, is not in it.

    Args:
        prepare: Picklable; see `Workload`.
        device: Whose memory is counted.
        steps: Steps to run; the second is the first that finds the optimiser's state.

    Raises:
        SettingsError: steps is below 1, or there is no such device.
        TrainingError: The process was killed, most likely for want of memory.
    """
    if steps < 1:
        raise SettingsError(f"the memory of {steps} steps was asked for: use 1 or more.")
    with pool(1) as workers:
        try:
            return workers.submit(_measured, prepare, device, steps).result()
        except BrokenProcessPool as error:
            raise TrainingError(
                "the process that measured a step was killed, most likely for want of memory: use a smaller batch, "
                "smaller images or a larger machine."
            ) from error


def _measured(prepare: Prepare, device: str, steps: int) -> PeakMemory:
    if device == "cuda":
        import torch

        step = prepare()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        peak = int(torch.cuda.max_memory_allocated())
        return PeakMemory(peak, peak, "CUDA allocator")
    _load_torch()
    _forget_peak()
    before = _resident("VmRSS")
    step = prepare()
    for _ in range(steps):
        step()
    peak = _resident("VmHWM")
    return PeakMemory(max(0, peak - before), peak, "resident set")


def _load_torch() -> None:
    """Let torch load what it loads at the first step, 160 MB that are no step's."""
    if "torch" not in sys.modules:  # the step does without
        return
    import torch

    layer = torch.nn.Conv2d(1, 1, 1)
    layer(torch.zeros(1, 1, 1, 1)).sum().backward()
    for optimizer in (torch.optim.SGD, torch.optim.Adam):
        optimizer(layer.parameters(), lr=0.0).step()


def _forget_peak() -> None:
    """Put the high-water mark back to what is held now; imports leave it higher."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _resident(name: str) -> int:
    """A line of the kernel's status, in bytes; the high-water mark of `getrusage` where there is none."""
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
