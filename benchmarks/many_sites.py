"""What a round costs the server with 4, 16 and 64 sites that all answer at the same moment, over mutual TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from poc.federation import LocalFederation
from poc.processes import belonging
from poc.project import SERVER

from benchmarks.common import ROOT, Result, result, target
from benchmarks.processes import end_tree
from benchmarks.round_jobs import POLL_S, write_our_job
from benchmarks.round_overhead import round_times
from fedretina.flare.admin_jobs import submit
from fedretina.flare.submitted_job import named_copy
from fedretina.storage import read_json

_CASES, _ROUNDS = (4, 16, 64), 3
_ENCODER = "resnet18"
PEAK, RELAY_PEAK = "peak of the job's process, MB", "peak of the server's lasting process, MB"
JOB, RELAY = "CPU s a round, the job's process", "CPU s a round, the server's lasting process"
_RATIO, _TARGET = "peak of the server's processes over that with the fewest sites", 1.3
_TIMEOUT_S = 900.0
"""One process stands for all sites; a reply that it is late to take FLARE gives up after 90 s, to be asked anew."""
_LOOK_S = 0.05
_JOB = "nvflare.private.fed.app.server.runner_process"


class Cost(NamedTuple):
    """What a run cost.

    Attributes:
        seconds: Of each round.
        job_cpu: CPU seconds of the server's process of the job in each round after the first.
        relay_cpu: Those of the server's lasting process, which all connections end in.
        sites_cpu: Those of the process that stands for the sites.
        peak: Most memory that the job's process held, in MB, file pages that it had mapped among it.
        begun: What it held before the first round; 0 where that had begun at the first look.
        relay_peak: Most memory that the server's lasting process held.
        bytes: Bytes of an update.
    """

    seconds: list[float]
    job_cpu: list[float]
    relay_cpu: list[float]
    sites_cpu: list[float]
    peak: float
    begun: float
    relay_peak: float
    bytes: float


def measure(scratch: Path, quick: bool = False) -> Result:
    """Run a federation a case: the server as it is in production, and its sites in one process.

    Args:
        scratch: For kits, state and spools, up to 7 GB.
        quick: Two sites, two rounds and a small network.

    Raises:
        RuntimeError: A run failed, took too long, or its log lacks a round.
    """
    cases = (2,) if quick else _CASES
    rounds, encoder = (2, "mobilenet_v2") if quick else (_ROUNDS, _ENCODER)
    found = {}
    for sites in cases:
        folder = Path(tempfile.mkdtemp(prefix=f"sites-{sites}-", dir=scratch))
        try:
            found[sites] = run(folder, sites, rounds, encoder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    few = found[cases[0]]
    return result(
        "Many sites",
        "Seconds and memory of a server whose sites all answer at the same moment: the server is the real one, in its "
        "two processes and over mutual TLS; its sites are FLARE's cells in one process, which register, ask for tasks "
        "and send back what came. Nobody trains.",
        {
            f"{sites} sites": {
                _RATIO: [(cost.peak + cost.relay_peak) / (few.peak + few.relay_peak)],
                PEAK: [cost.peak],
                "of it before the first round, MB": [cost.begun] if cost.begun else [],
                RELAY_PEAK: [cost.relay_peak],
                "s a round": cost.seconds[1:],
                JOB: cost.job_cpu,
                RELAY: cost.relay_cpu,
                "CPU s a round, the sites' process": cost.sites_cpu,
                "MB an update": [cost.bytes / 1e6],
            }
            for sites, cost in found.items()
        },
        [target(_RATIO, "at most", _TARGET)],
        {"rounds": rounds, "network": encoder, "poll interval, s": POLL_S, "torch threads": 1},
        [
            "Rounds after the first, from the order to the model on disk. Server and sites share this machine's cores, "
            "so the seconds are those of both; the CPU seconds are each one's own.",
            "The peak holds what FLARE has of messages that arrive together, and pages of files that are mapped.",
        ],
    )


def run(folder: Path, sites: int, rounds: int, encoder: str) -> Cost:
    """Run one federation to its end.

    Raises:
        RuntimeError: It failed, took too long, or its log lacks a round.
    """
    names = [f"site-{number + 1:03d}" for number in range(sites)]
    federation = LocalFederation(folder / "poc", names)
    federation.prepare()
    try:
        federation.start_one(SERVER)
        with open(folder / "sites.txt", "w", encoding="utf-8") as console:
            command = [sys.executable, "-m", "benchmarks.echo_sites", str(federation.kit(SERVER).parent), *names]
            environment = {**federation.environment(), "PYTHONPATH": _path()}
            files: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": console, "stderr": subprocess.STDOUT}
            echo = subprocess.Popen(command, cwd=ROOT, env=environment, **files)
        try:
            federation.wait_for_sites(_TIMEOUT_S)
            job = named_copy(write_our_job(folder / "ours", rounds, encoder), folder, "many", names)
            with federation.session() as session:
                submit(session, job)
                watched = _followed(federation, echo, rounds)
        except BaseException:
            print((folder / "sites.txt").read_text(encoding="utf-8")[-4000:], file=sys.stderr)
            raise
        finally:
            end_tree(echo)
    finally:
        federation.stop(at_once=True)
    return watched


def _path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def _followed(federation: LocalFederation, echo: subprocess.Popen[bytes], rounds: int) -> Cost:
    """Look at the processes until the run has its results."""
    until, text = time.monotonic() + _TIMEOUT_S, ""
    done = federation.state / "many" / "server" / "results.json"
    marks: dict[int, dict[str, float]] = {}
    begun = peak = relay_peak = 0.0
    job: psutil.Process | None = None
    while not done.exists():
        if time.monotonic() > until or echo.poll() is not None:
            raise RuntimeError(f"the run did not end; the last of the server's log:\n{text[-3000:]}")
        time.sleep(_LOOK_S)
        text = _log(federation) or text
        job = job or _job(federation)
        if job is None:
            continue
        try:
            peak, relay_peak = max(peak, _peak_mb(job.pid)), max(relay_peak, _peak_mb(job.ppid()))
            if "train-0000: begun" not in text:
                begun = peak
            ended = len(round_times(text))
            if ended not in marks:
                marks[ended] = _cpu(job, echo)
        except psutil.NoSuchProcess as error:
            if done.exists():  # it ended well since the last look
                break
            said = f"the server's process of the job has ended; the last of its log:\n{text[-3000:]}"
            raise RuntimeError(said) from error
    times = round_times(_log(federation) or text)
    if sorted(times) != list(range(rounds)):
        raise RuntimeError(f"the server's log holds {len(times)} of {rounds} rounds.")
    steps = [(marks[number], marks[number + 1]) for number in range(1, rounds) if {number, number + 1} <= set(marks)]
    spent = {name: [after[name] - before[name] for before, after in steps] for name in ("job", "relay", "sites")}
    size = max(read_json(done)["steps"][0]["bytes_up"].values())
    return Cost(
        [times[at] for at in range(rounds)], spent["job"], spent["relay"], spent["sites"], peak, begun, relay_peak, size
    )


def _log(federation: LocalFederation) -> str:
    """The log of the server's job; FLARE packs it away when the job ends."""
    for path in federation.kit(SERVER).glob("*/log.txt"):
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # the job has just ended
            continue
    return ""


def _job(federation: LocalFederation) -> psutil.Process | None:
    """The server's process of the job."""
    found = (one for one in belonging(federation.kit(SERVER)) if _JOB in one.info["cmdline"])
    return next(found, None)


def _peak_mb(pid: int) -> float:
    """Most memory that a process has held, in MB; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return max((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), default=0.0)


def _cpu(job: psutil.Process, echo: subprocess.Popen[bytes]) -> dict[str, float]:
    """CPU seconds of the three processes since they began."""
    found = {"job": job, "relay": psutil.Process(job.ppid()), "sites": psutil.Process(echo.pid)}
    times = {name: one.cpu_times() for name, one in found.items()}
    return {name: time_.user + time_.system for name, time_ in times.items()}
