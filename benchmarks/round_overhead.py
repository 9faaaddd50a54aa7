"""Seconds of a federated round that are not training, beside FLARE's own FedAvg on the same machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.common import ROOT, Result, result, target
from benchmarks.processes import end_tree
from benchmarks.round_jobs import POLL_S, write_flare_job, write_our_job, write_site_file

_SITES = 5
_ROUNDS = 8
_MANY, _MANY_ROUNDS, _MANY_ENCODER = 16, 4, "resnet18"
_PASSES = 2
_TIMEOUT_S = 240.0
_FLOWER = "Flower's simulation"
FLOWER = "FEDRETINA_FLOWER_PYTHON"
"""Variable of the environment that names a Python with `flwr[simulation]` and torch; unset, Flower is left out."""
_LINE = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\b.*?(?:train-(\d{4}): (begun|done)|Round (\d+) (started|finished)\.)"
)


class Rounds(NamedTuple):
    """What the rounds of a run took.

    Attributes:
        seconds: Of each round, the first one with the start of the sites' processes.
        cpu: CPU seconds of all processes in each round after the first.
    """

    seconds: list[float]
    cpu: list[float]


def measure(scratch: Path, quick: bool = False) -> Result:
    """Run the jobs in the simulator, one after the other, and read their rounds from the server's log.

    Args:
        scratch: For jobs, workspaces and state.
        quick: One site, two rounds and one pass.

    Raises:
        RuntimeError: A job failed, took too long, or its log lacks a round.
    """
    sites, rounds = (1, 2) if quick else (_SITES, _ROUNDS)
    site_file = write_site_file(scratch / "site.yaml")
    jobs = {
        "ours": write_our_job(scratch / "ours", rounds),
        "FLARE's FedAvg": write_flare_job(scratch / "flare", rounds, sites),
    }
    found: dict[str, list[Rounds]] = {}
    for _ in range(1 if quick else _PASSES):  # interleaved, so that what else the machine does meets all of them
        for name, job in jobs.items():
            found.setdefault(name, []).append(_rounds(job, scratch, sites, rounds, site_file))
        if python := os.environ.get(FLOWER):
            found.setdefault(_FLOWER, []).append(_flower(python, sites, rounds))
    figures: dict[str, Sequence[float]] = {}
    later = {name: [second for one in runs for second in one.seconds[1:]] for name, runs in found.items()}
    for name in list(later)[1:]:
        figures[f"median of ours / median of {name}"] = [median(later["ours"]) / median(later[name])]
        figures[f"the same, pass by pass, {name}"] = [
            median(ours.seconds[1:]) / median(theirs.seconds[1:])
            for ours, theirs in zip(found["ours"], found[name], strict=True)
        ]
    for name, runs in found.items():
        figures[f"{name}, s a round"] = later[name]
        figures[f"{name}, CPU s a round, all processes"] = [second for one in runs for second in one.cpu]
        figures[f"{name}, s of the first round"] = [one.seconds[0] for one in runs]
    cases: dict[str, dict[str, Sequence[float]]] = {f"{sites} sites, rounds after the first": figures}
    if not quick:
        many = _rounds(
            write_our_job(scratch / "many", _MANY_ROUNDS, _MANY_ENCODER), scratch, _MANY, _MANY_ROUNDS, site_file
        )
        cases[f"{_MANY} sites, ResNet-18, rounds after the first"] = {
            "ours, s a round": many.seconds[1:],
            "ours, CPU s a round, all processes": many.cpu,
            "ours, s of the first round": many.seconds[:1],
        }
    return result(
        "A round without training",
        f"Seconds of a round of {sites} sites that exchange a whole ResNet-50 and do not train: ours (stamps, filters "
        "at both ends, ledger, durable state at sites and server, theta and figures from random logits) against "
        "FLARE's own FedAvg (ScatterAndGather, InTimeAccumulateWeightedAggregator, PTFileModelPersistor, no filter, "
        "no ledger, no state at a site) and, where it is installed, Flower's simulation (FedAvg on ray, nothing on "
        "disk).",
        cases,
        [target(f"median of ours / median of {_FLOWER}", "at most", 0.65)],
        {
            "sites": sites,
            "rounds": rounds,
            "poll interval, s": POLL_S,
            "torch threads": 1,
            "Flower": _flower_version(os.environ.get(FLOWER)),
        },
        [
            "Ours and FLARE's run in `nvflare simulator` with a thread a site; the runs are interleaved. Every site "
            "loads what it receives into its network and reads it out again.",
            "A round is timed at the server, from its beginning to the model on disk; the first one holds the start of "
            "the sites' processes as well.",
            f"With {_MANY} sites ours ran alone, once, {_MANY_ROUNDS} rounds, with a smaller network.",
        ],
    )


def _rounds(job: Path, scratch: Path, sites: int, rounds: int, site_file: Path) -> Rounds:
    workspace = scratch / f"workspace-{job.name}"
    state = scratch / f"state-{job.name}"
    environment = {
        **os.environ,
        "HOME": str(scratch),  # FLARE writes its own settings there
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "FEDRETINA_SITE_FILE": str(site_file),
        "FEDRETINA_STATE_ROOT": str(state),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(workspace)]
    command += ["-n", str(sites), "-t", str(sites)]
    console, file = scratch / f"{job.name}.txt", workspace / "server" / "log.txt"
    with open(console, "w", encoding="utf-8") as handle:
        process = subprocess.Popen(command, cwd=scratch, env=environment, stdout=handle, stderr=subprocess.STDOUT)
        try:
            cpu = _followed(process, file)
        finally:
            end_tree(process)
    times = round_times(file.read_text(encoding="utf-8"))
    shutil.rmtree(workspace)
    shutil.rmtree(state, ignore_errors=True)
    if process.returncode != 0 or sorted(times) != list(range(rounds)):
        tail = "\n".join(console.read_text(encoding="utf-8").splitlines()[-20:])
        raise RuntimeError(
            f"the job {job.name} ended with {process.returncode} after {len(times)} of {rounds} rounds:\n{tail}"
        )
    return Rounds([times[number] for number in range(rounds)], cpu)


def _followed(process: subprocess.Popen[bytes], log: Path) -> list[float]:
    """Wait for a job, and count the CPU seconds of its processes from the end of each round to that of the next.

    A round whose end, or whose predecessor's, came and went between two looks is not counted.
    """
    until, marks = time.monotonic() + _TIMEOUT_S, dict[int, dict[int, float]]()
    while process.poll() is None:
        if time.monotonic() > until:
            raise RuntimeError(f"the job did not end in {_TIMEOUT_S:.0f} s.")
        time.sleep(0.05)
        ended = len(round_times(log.read_text(encoding="utf-8"))) if log.exists() else 0
        if ended not in marks:
            marks[ended] = cpu_seconds(process.pid)
    steps = [(marks[number], marks[number + 1]) for number in marks if number and number + 1 in marks]
    return [sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items()) for before, after in steps]


def cpu_seconds(pid: int) -> dict[int, float]:
    """CPU seconds of a process and of all that it has started, by process id."""
    found = {}
    try:
        for one in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            times = one.cpu_times()
            found[one.pid] = times.user + times.system
    except psutil.NoSuchProcess:
        pass
    return found


def _flower_version(python: str | None) -> str:
    if not python:
        return "none"
    command = [python, "-c", "from importlib.metadata import version; print(version('flwr'))"]
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout.strip()


def _flower(python: str, sites: int, rounds: int) -> Rounds:
    command = [python, str(ROOT / "benchmarks" / "flower_rounds.py"), str(sites), str(rounds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    ).stdout
    return Rounds(**json.loads(done.splitlines()[-1]))


def round_times(log: str) -> dict[int, float]:
    """Seconds by round, from the stamps of the lines in which the controllers begin and end it."""
    begun: dict[int, datetime] = {}
    took: dict[int, float] = {}
    for line in log.splitlines():
        found = _LINE.match(line)
        if not found:
            continue
        number = int(found[2] or found[4])
        at = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f")
        if (found[3] or found[5]) in ("begun", "started"):
            begun[number] = at
        else:
            took[number] = (at - begun[number]).total_seconds()
    return took
