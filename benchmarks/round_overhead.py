"""Seconds of a federated round that are not training, beside FLARE's own FedAvg on the same machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from statistics import median

from benchmarks.common import ROOT, Result, result
from benchmarks.processes import end_tree
from benchmarks.round_jobs import POLL_S, write_flare_job, write_our_job, write_site_file

_SITES = 5
_ROUNDS = 4
_TIMEOUT_S = 240.0
_LINE = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\b.*?(?:train-(\d{4}): (begun|done)|Round (\d+) (started|finished)\.)"
)


def measure(scratch: Path, quick: bool = False) -> Result:
    """Run both jobs in the simulator, one after the other, and read their rounds from the server's log.

    Args:
        scratch: For jobs, workspaces and state.
        quick: One site and two rounds.

    Raises:
        RuntimeError: A job failed, took too long, or its log lacks a round.
    """
    sites, rounds = (1, 2) if quick else (_SITES, _ROUNDS)
    site_file = write_site_file(scratch / "site.yaml")
    ours = _rounds(write_our_job(scratch / "ours", rounds), scratch, sites, rounds, site_file)
    theirs = _rounds(write_flare_job(scratch / "flare", rounds, sites), scratch, sites, rounds, site_file)
    figures = {
        "median of ours / median of FLARE's": [median(ours[1:]) / median(theirs[1:])],
        "ours, s a round": ours[1:],
        "FLARE's FedAvg, s a round": theirs[1:],
        "ours, s of the first round": ours[:1],
        "FLARE's FedAvg, s of the first round": theirs[:1],
    }
    return result(
        "A round without training",
        f"Seconds of a round of {sites} sites that exchange a whole ResNet-50 and do not train: ours (stamps, filters "
        "at both ends, ledger, durable state at sites and server, theta and figures from random logits) against "
        "FLARE's own FedAvg (ScatterAndGather, InTimeAccumulateWeightedAggregator, PTFileModelPersistor, no filter, "
        "no ledger, no state at a site).",
        {f"{sites} sites, rounds after the first": figures},
        None,
        {"sites": sites, "rounds": rounds, "poll interval, s": POLL_S, "torch threads": 1},
        [
            "Both run in `nvflare simulator` with a thread a site, one job after the other. Every site loads what it "
            "receives into its network and reads it out again.",
            "A round is timed at the server, from its beginning to the model on disk; the first one holds the start of "
            "the sites' processes as well.",
        ],
    )


def _rounds(job: Path, scratch: Path, sites: int, rounds: int, site_file: Path) -> list[float]:
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
    console = scratch / f"{job.name}.txt"
    with open(console, "w", encoding="utf-8") as handle:
        process = subprocess.Popen(command, cwd=scratch, env=environment, stdout=handle, stderr=subprocess.STDOUT)
        try:
            code = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the job {job.name} did not end in {_TIMEOUT_S:.0f} s.") from error
        finally:
            end_tree(process)
    log = (workspace / "server" / "log.txt").read_text(encoding="utf-8")
    shutil.rmtree(workspace)
    shutil.rmtree(state, ignore_errors=True)
    times = _times(log)
    if code != 0 or sorted(times) != list(range(rounds)):
        tail = "\n".join(console.read_text(encoding="utf-8").splitlines()[-20:])
        raise RuntimeError(f"the job {job.name} ended with {code} after {len(times)} of {rounds} rounds:\n{tail}")
    return [times[number] for number in range(rounds)]


def _times(log: str) -> dict[int, float]:
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
