"""Peak memory of a server that takes the updates of 64 sites, beside one that takes those of 4."""

from __future__ import annotations

import json
import os
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
_MIXING = "mixing with the extra fast / reading"
_FEW, _MANY = 4, 64
_FEW_REPEATS = 3
_TURNS = 3
_TIMEOUT_S = 400.0
_UPDATE_BYTES = 103e6


def measure(scratch: Path, quick: bool = False) -> Result:
    """Let a fresh process a case take the updates and tell its peak.

    Args:
        scratch: The spool of 64 sites takes 6.6 GB of it for a while.
        quick: Two sites against one.

    Raises:
        RuntimeError: The disk has no room.
    """
    few, many = (1, 2) if quick else (_FEW, _MANY)
    need = (many + few) * _UPDATE_BYTES
    if shutil.disk_usage(scratch).free < need:
        raise RuntimeError(f"the spool of {many} sites needs {need / 1e9:.1f} GB: name another folder with --scratch.")
    small = [_afresh(few, scratch) for _ in range(1 if quick else _FEW_REPEATS)]
    large = [_afresh(many, scratch)]
    peaks = [found["peak"] for found in small]
    grown = [found["peak"] - found["before"] for found in small]
    figures = {
        "peak, many / few": [found["peak"] / median(peaks) for found in large],
        "peak above the start, many / few": [(found["peak"] - found["before"]) / median(grown) for found in large],
        f"peak at {few} sites, MB": peaks,
        f"peak at {many} sites, MB": [found["peak"] for found in large],
        "start: peak before the first update, MB": [found["before"] for found in small + large],
        f"taking an update, s at {many} sites": [found["accept_s"] / many for found in large],
        f"mixing {few} updates, s": [value for found in small for value in found["mix_s"]],
        f"mixing {many} updates, s": [value for found in large for value in found["mix_s"]],
        f"reading the bytes of {many} updates, s": [value for found in large for value in found["pass_s"]],
        f"{_MIXING}, {many} updates": [
            mix / read for found in large for mix, read in zip(found["mix_s"], found["pass_s"], strict=True)
        ],
        f"mixing without Numba / reading, {many} updates": [
            mix / read for found in large for mix, read in zip(found["plain_s"], found["pass_s"], strict=True)
        ],
        "loading Numba and compiling, s, once in a process": [found["compile_s"] for found in large],
        f"closing the round of {many} updates, s": [found["close_s"] for found in large],
    }
    return result(
        "Server memory",
        f"Peak resident memory of a process whose `Coordinator` takes and mixes the updates of {many} sites, against "
        f"one that takes those of {few}: a whole ResNet-50 in float32, a fresh process each.",
        {f"{many} sites against {few}": figures},
        [target("peak, many / few", "at most", _TARGET), target(f"{_MIXING}, {many} updates", "at most", 1.5)],
        {"numbers an update": int(large[0]["numbers"]), "torch threads": 1, "spool, GB": round(need / 1e9, 1)},
        [
            "Most of the peak is there before the first update (libraries, the network and its start), so the ratio of "
            "what comes on top stands beside the target's.",
            "Updates are made by the harness and handed over one at a time; what FLARE's transport holds of messages "
            "that arrive at the same moment is not in it; [Many sites](#many-sites) has it.",
            "Mixing is the weighted mean alone, in float64; reading is one pass of as many threads over the same files "
            "that sums their bytes; both find them in the page cache and are taken in turn. Closing is the mean with "
            "the checks, the digest and the durable write of the model.",
            "With the extra `fast` a server mixes by a compiled loop where the sites' numbers are 2^30 and more, as "
            "with 64 updates here and not with 4; the bits are the same without. It is loaded before the closing is "
            "timed, and its memory is in the peak at 64 sites alone. Without it the two figures of mixing are one.",
        ],
    )


def _afresh(sites: int, scratch: Path) -> dict[str, Any]:
    folder = scratch / f"server-of-{sites}"
    try:
        told = fresh_python(["-m", "benchmarks.server_memory", str(sites), str(folder)], _TIMEOUT_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def _serve(sites: int, folder: Path) -> dict[str, Any]:
    """Run one round of a server in this process; peaks in MB."""
    import torch

    from fedretina.aggregation import spool as spool_file
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
    mean, reading, mixing, plain = Spool.weighted_mean, [], [], []
    threads = os.cpu_count() or 1
    _read_all(folder / "spool", threads)  # into the page cache, where the machine has dropped them

    def timed(spool: Spool, *given: Any) -> Any:
        for _ in range(_TURNS):
            from_here = time.perf_counter()
            _read_all(folder / "spool", threads)
            read = time.perf_counter()
            found = mean(spool, *given)
            mixed = time.perf_counter()
            reading.append(read - from_here)
            mixing.append(mixed - read)
            with patch.object(spool_file, "_add_compiled", lambda: None):
                mean(spool, *given)
            plain.append(time.perf_counter() - mixed)
        return found

    loading = time.perf_counter()
    if sites * sum(tensor.numel() for tensor in sent.values()) >= spool_file._COMPILED_FROM:
        spool_file._add_compiled()
    loaded = time.perf_counter() - loading
    closing = time.perf_counter()
    with patch.object(Spool, "weighted_mean", timed):
        coordinator.close()
    closed = time.perf_counter() - closing - sum(reading) - sum(mixing[1:]) - sum(plain)
    return {
        "before": before,
        "peak": _peak_mb(),
        "accept_s": accepted - began,
        "pass_s": reading,
        "mix_s": mixing,
        "plain_s": plain,
        "compile_s": loaded,
        "close_s": closed,
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
                while (length := file.readinto(stretch.data)) > 0:
                    np.add.reduce(stretch[: length // 8])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, range(threads)))


def _peak_mb() -> float:
    """Peak resident memory of this process since it began with its program; Linux counts in kibibytes."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    print(json.dumps(_serve(int(sys.argv[1]), Path(sys.argv[2]))))
