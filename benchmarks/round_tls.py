"""Seconds of a round over mutual TLS on one machine, split into wait, serialise, wire and work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from statistics import mean, median

from benchmarks.common import ROOT, Result, result
from benchmarks.processes import end_tree
from benchmarks.round_jobs import POLL_S, write_our_job, write_site_file
from benchmarks.round_overhead import round_times

_SITES, _ROUNDS, _TIMEOUT_S = 5, 4, 400.0
_LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - (.*)$")
_DOWN = re.compile(r"getTask: train .* time: ([\d.]+) seconds")
_UP = re.compile(r"SubmitUpdate to: .* time: ([\d.]+) seconds")
_FETCH = re.compile(r"download ref=\S+ done: elapsed=([\d.]+)s")


def measure(scratch: Path, quick: bool = False) -> Result:
    """Rehearse a run with startup kits and mutual TLS, and read its rounds from the logs of the server and the sites.

    Once with all tensors sent over TLS, as between hospitals, and once with tensors handed over as files.

    Args:
        scratch: For the job, the federation and its state.
        quick: One site and two rounds.

    Raises:
        RuntimeError: A rehearsal failed, took too long, sent what it was to hand over, or a log lacks a round.
    """
    sites, rounds = (1, 2) if quick else (_SITES, _ROUNDS)
    job, site_file = write_our_job(scratch / "ours", rounds), write_site_file(scratch / "site.yaml")
    cases = {
        title: _figures(_rehearsed(scratch, job, site_file, sites, options), sites, rounds)
        for title, options in ((f"{sites} sites, sent", []), (f"{sites} sites, handed over", ["--hand-over"]))
    }
    if any(cases[f"{sites} sites, handed over"]["of it wire, s"]):
        raise RuntimeError("tensors were sent that were to be handed over.")
    return result(
        "A round over mutual TLS",
        f"Seconds of a round of {sites} sites that exchange a whole ResNet-50 and do not train, over mutual TLS on the "
        "loopback of one machine: with the tensors sent, as between hospitals, and with the tensors handed over as "
        "files, as a rehearsal with `--hand-over` does. Rounds after the first.",
        cases,
        None,
        {"sites": sites, "rounds": rounds, "poll interval, s": POLL_S, "torch threads": 1},
        [
            "Wire: from the first request for a message's tensors to its last byte, down and up; nothing of it where "
            "they are handed over. Serialise: what else goes by until a message is there. Work: from an order to its "
            "answer, at the site. Wait: the rest of the round, in which a site waits for its turn, for others and for "
            "the server. Means over sites.",
        ],
    )


def _figures(logs: dict[Path, str], sites: int, rounds: int) -> dict[str, list[float]]:
    server = next((text for text in logs.values() if "train-0000: begun" in text), "")
    times = round_times(server)
    if sorted(times) != list(range(rounds)):
        raise RuntimeError(f"the server's log holds {len(times)} of {rounds} rounds.")
    found = [_split(text, times) for text in logs.values() if _DOWN.search(text)]
    fetched = [float(one[1]) for one in _FETCH.finditer(server)][sites:]  # after the first round's
    later = [times[number] for number in range(1, rounds)]
    down, up, work, fetch = (mean(one[at] for one in found) for at in range(4))
    wire = fetch + (mean(fetched) if fetched else 0.0)
    serialise = max(down + up - wire, 0.0)
    return {
        "s a round": later,
        "s of the first round": [times[0]],
        "of it wire, s": [wire],
        "of it serialise, s": [serialise],
        "of it work at a site, s": [work],
        "of it wait, s": [max(median(later) - wire - serialise - work, 0.0)],
    }


def _rehearsed(scratch: Path, job: Path, site_file: Path, sites: int, options: Sequence[str]) -> dict[Path, str]:
    """The last text of every log of a job, since FLARE packs them away when it ends."""
    folder, found = scratch / "poc", dict[Path, str]()
    command = [sys.executable, "-m", "poc", "--job", str(job), "--sites", str(sites), "--folder", str(folder)]
    command += ["--run", "tls", "--site-file", str(site_file), "--timeout", str(_TIMEOUT_S), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    until = time.monotonic() + _TIMEOUT_S + 60
    with open(scratch / "poc.txt", "w", encoding="utf-8") as console:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=console, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.2)
                found.update(_logs(folder))
        finally:
            end_tree(process)
    if process.returncode != 0:
        tail = "\n".join((scratch / "poc.txt").read_text(encoding="utf-8").splitlines()[-20:])
        raise RuntimeError(f"the rehearsal ended with {process.returncode}:\n{tail}")
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _logs(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in folder.glob("flare/*/prod_00/*/*/log.txt"):
        try:
            yield path, path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # the job has just ended
            continue


def _split(log: str, times: dict[int, float]) -> tuple[float, float, float, float]:
    """Mean seconds of a site's rounds after the first: down, up, work between them, and fetching what came down."""
    downs, ups, works, fetches = list[float](), list[float](), list[float](), list[float]()
    came: datetime | None = None
    for line in log.splitlines():
        parts = _LINE.match(line)
        if parts is None:
            continue
        at = datetime.strptime(parts[1], "%Y-%m-%d %H:%M:%S,%f")
        if fetch := _FETCH.search(parts[2]):
            fetches.append(float(fetch[1]))
        elif down := _DOWN.search(parts[2]):
            came = at
            downs.append(float(down[1]))
        elif (up := _UP.search(parts[2])) and came is not None:
            ups.append(float(up[1]))
            works.append((at - came).total_seconds() - ups[-1])
            came = None
    if min(len(downs), len(ups)) < len(times):
        raise RuntimeError("a site's log lacks a round.")
    first, last = 1, len(times)
    fetched = mean(fetches[first:last]) if len(fetches) >= last else 0.0
    return mean(downs[first:last]), mean(ups[first:last]), mean(works[first:last]), fetched
