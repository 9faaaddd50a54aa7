"""Peak memory of a server that takes the updates of 64 sites, beside one that takes those of 4."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.common import Result, fresh_python, result, target
from benchmarks.resnet50 import experiment_words

_TARGET = 1.3
_FEW, _MANY = 4, 64
_FEW_REPEATS = 3
_TIMEOUT_S = 400.0
_UPDATE_BYTES = 103e6


def measure(scratch: Path, quick: bool = False) -> Result:
    """Let a fresh process a case take the updates and tell its peak.

    Args:
        scratch: The spool of 64 sites takes 6.6 GB of it for a while.
        quick: 8 sites in place of 64.

    Raises:
        RuntimeError: The disk has no room.
    """
    many = 8 if quick else _MANY
    need = (many + 4) * _UPDATE_BYTES
    if shutil.disk_usage(scratch).free < need:
        raise RuntimeError(f"the spool of {many} sites needs {need / 1e9:.1f} GB: name another folder with --scratch.")
    small = [_afresh(_FEW, scratch) for _ in range(1 if quick else _FEW_REPEATS)]
    large = [_afresh(many, scratch)]
    peaks = [found["peak"] for found in small]
    grown = [found["peak"] - found["before"] for found in small]
    figures = {
        "peak, many / few": [found["peak"] / median(peaks) for found in large],
        "peak above the start, many / few": [(found["peak"] - found["before"]) / median(grown) for found in large],
        f"peak at {_FEW} sites, MB": peaks,
        f"peak at {many} sites, MB": [found["peak"] for found in large],
        "start: peak before the first update, MB": [found["before"] for found in small + large],
        f"taking an update, s at {many} sites": [found["accept_s"] / many for found in large],
        f"mixing {_FEW} updates, s": [found["mix_s"] for found in small],
        f"mixing {many} updates, s": [found["mix_s"] for found in large],
        f"reading the bytes of {many} updates, s": [found["pass_s"] for found in large],
        f"mixing / reading, {many} updates": [found["mix_s"] / found["pass_s"] for found in large],
        f"closing the round of {many} updates, s": [found["close_s"] for found in large],
    }
    return result(
        "Server memory",
        f"Peak resident memory of a process whose `Coordinator` takes and mixes the updates of {many} sites, against "
        f"one that takes those of {_FEW}: a whole ResNet-50 in float32, a fresh process each.",
        {f"{many} sites against {_FEW}": figures},
        target("peak, many / few", "at most", _TARGET),
        {"numbers an update": int(large[0]["numbers"]), "torch threads": 1, "spool, GB": round(need / 1e9, 1)},
        [
            "Most of the peak is there before the first update (libraries, the network and its start), so the ratio of "
            "what comes on top stands beside the target's.",
            "Updates are made by the harness and handed over one at a time; what FLARE's transport holds of messages "
            "that arrive at the same moment is not in it.",
            "Mixing is the weighted mean alone, in float64; reading is one pass of as many threads over the same files "
            "that sums their bytes; both find them in the page cache. Closing is the mean with the checks, the digest "
            "and the durable write of the model.",
        ],
    )


def _afresh(sites: int, scratch: Path) -> dict[str, float]:
    folder = scratch / f"server-of-{sites}"
    try:
        told = fresh_python(["-m", "benchmarks.server_memory", str(sites), str(folder)], _TIMEOUT_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def _serve(sites: int, folder: Path) -> dict[str, float]:
    """Run one round of a server in this process; peaks in MB."""
    import torch

    from fedretina.aggregation.coordinator import Coordinator
    from fedretina.aggregation.spool import Spool
    from fedretina.exchange.payload import Payload
    from fedretina.settings.experiment import Experiment

    torch.set_num_threads(1)
    coordinator = Coordinator(Experiment.resolve(experiment_words(1)), "benchmark", folder)
    coordinator.begin([f"site-{number + 1:03d}" for number in range(sites)])
    sent = coordinator.down()
    before = _peak_mb()
    began = time.perf_counter()
    for number in range(sites):
        site = f"site-{number + 1:03d}"
        update = {key: tensor * (1 + number / 1000) for key, tensor in sent.items()}
        scalars = {"theta": 0.5 + number / 1000, "images": 100.0}
        coordinator.accept(site, Payload(update, scalars, coordinator.order(site).stamp))
        del update
    accepted = time.perf_counter()
    _read_all(folder / "spool", os.cpu_count() or 1)  # into the page cache, where the machine has dropped them
    read = time.perf_counter()
    _read_all(folder / "spool", os.cpu_count() or 1)
    passed = time.perf_counter()
    mean, mixing = Spool.weighted_mean, []

    def timed(spool: Spool, *given: Any) -> Any:
        from_here = time.perf_counter()
        try:
            return mean(spool, *given)
        finally:
            mixing.append(time.perf_counter() - from_here)

    with patch.object(Spool, "weighted_mean", timed):
        coordinator.close()
    return {
        "before": before,
        "peak": _peak_mb(),
        "accept_s": accepted - began,
        "pass_s": passed - read,
        "mix_s": sum(mixing),
        "close_s": time.perf_counter() - passed,
        "numbers": float(sum(tensor.numel() for tensor in sent.values())),
    }


def _read_all(folder: Path, threads: int) -> None:
    """Read each file once, in stretches that fit into the processor's cache, and sum what is read."""
    import numpy as np

    files = sorted(folder.iterdir())

    def read(at: int) -> None:
        stretch = np.empty(2**17, np.uint64)
        for path in files[at::threads]:
            with path.open("rb", buffering=0) as file:
                while (length := file.readinto(stretch)) > 0:
                    np.add.reduce(stretch[: length // 8])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, range(threads)))


def _peak_mb() -> float:
    """Peak resident memory of this process; Linux counts in kibibytes.

    The kernel starts the count at what the parent held when it forked, so the parent must be small: no torch there.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    print(json.dumps(_serve(int(sys.argv[1]), Path(sys.argv[2]))))
