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

from benchmarks.common import BESIDE, ROOT, Result, commit_of, result, target
from benchmarks.processes import end_tree
from benchmarks.round_jobs import POLL_S
from benchmarks.round_overhead import round_times

_SITES, _ROUNDS, _TURNS, _TIMEOUT_S = 5, 4, 2, 400.0
_RATIO = "median of ours / median of older"
_WRITE = (
    "import sys; from pathlib import Path; from benchmarks import round_jobs;"
    "round_jobs.write_our_job(Path(sys.argv[1]), int(sys.argv[2])); round_jobs.write_site_file(Path(sys.argv[3]))"
)
"""Writes the job and the site file of whatever checkout runs it."""
_LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - (.*)$")
_DOWN = re.compile(r"getTask: train .* time: ([\d.]+) seconds")
_UP = re.compile(r"SubmitUpdate to: .* time: ([\d.]+) seconds")
_FETCH = re.compile(r"download ref=\S+ done: elapsed=([\d.]+)s")


def measure(scratch: Path, quick: bool = False) -> Result:
    """Rehearse a run with startup kits and mutual TLS, and read its rounds from the logs of the server and the sites.

    Once with all tensors sent over TLS, as between hospitals, and once with tensors handed over as files; where
    `BESIDE` names a checkout of an older commit, its round in turn with them.

    Args:
        scratch: For the job, the federation and its state.
        quick: One site and two rounds.

    Raises:
        RuntimeError: A rehearsal failed, took too long, sent what it was to hand over, or a log lacks a round.
    """
    sites, rounds, turns = (1, 2, 1) if quick else (_SITES, _ROUNDS, _TURNS)
    beside = os.environ.get(BESIDE)
    cases: dict[str, dict[str, list[float]]] = {}
    older: list[float] = []
    for _ in range(turns):  # interleaved, so that what else the machine does meets all of them
        for title, options in (("sent", []), ("handed over", ["--hand-over"])):
            found = cases.setdefault(f"{sites} sites, {title}", {})
            for figure, seconds in _figures(_rehearsed(ROOT, scratch, sites, rounds, options), sites, rounds).items():
                found.setdefault(figure, []).extend(seconds)
            wire = found["of it wire, s"]
            if any(wire) if options else not all(wire):
                raise RuntimeError("tensors went another way than they were to, or FLARE's log tells it otherwise.")
        if beside:
            older += _rounds(_rehearsed(Path(beside).resolve(), scratch, sites, rounds, []), rounds)[1:]
    if older:
        for found in cases.values():
            found["older, sent, s a round"] = older
            found[_RATIO] = [median(found["s a round"]) / median(older)]
    return result(
        "A round over mutual TLS",
        f"Seconds of a round of {sites} sites that exchange a whole ResNet-50 and do not train, over mutual TLS on the "
        "loopback of one machine: with the tensors sent, as between hospitals, and with the tensors handed over as "
        "files, as a rehearsal with `--hand-over` does. Beside them, run in turn, the same job of an older commit, "
        "which sends them. Rounds after the first.",
        cases,
        [target(_RATIO, "at most", 0.5)],
        {
            "sites": sites,
            "rounds": rounds,
            "poll interval, s": POLL_S,
            "torch threads": 1,
            "older commit": commit_of(Path(beside))[:8] if beside else "none",
        },
        [
            "What is handed over tells nothing of a round between hospitals: that is the one that is sent.",
            "The older commit's own benchmark of rounds may not run: that of 8b41e2d6 needs "
            "`benchmarks/echo_8b41e2d6.patch`, which mends what stands for its training.",
            "Wire: from the first request for a message's tensors to its last byte, down and up; nothing of it where "
            "they are handed over. Serialise: what else goes by until a message is there. Work: from an order to its "
            "answer, at the site. Wait: the rest of the round, in which a site waits for its turn, for others and for "
            "the server. Means over sites.",
        ],
    )


def _rounds(logs: dict[Path, str], rounds: int) -> list[float]:
    times = round_times(_of_server(logs))
    if sorted(times) != list(range(rounds)):
        raise RuntimeError(f"the server's log holds {len(times)} of {rounds} rounds.")
    return [times[number] for number in range(rounds)]


def _of_server(logs: dict[Path, str]) -> str:
    return next((text for text in logs.values() if "train-0000: begun" in text), "")


def _figures(logs: dict[Path, str], sites: int, rounds: int) -> dict[str, list[float]]:
    times = _rounds(logs, rounds)
    found = [_split(text, rounds) for text in logs.values() if _DOWN.search(text)]
    fetched = [float(one[1]) for one in _FETCH.finditer(_of_server(logs))][sites:]  # after the first round's
    down, up, work, fetch = (mean(one[at] for one in found) for at in range(4))
    wire = fetch + (mean(fetched) if fetched else 0.0)
    serialise = max(down + up - wire, 0.0)
    return {
        "s a round": times[1:],
        "s of the first round": [times[0]],
        "of it wire, s": [wire],
        "of it serialise, s": [serialise],
        "of it work at a site, s": [work],
        "of it wait, s": [max(median(times[1:]) - wire - serialise - work, 0.0)],
    }


def _rehearsed(root: Path, scratch: Path, sites: int, rounds: int, options: Sequence[str]) -> dict[Path, str]:
    """The last text of every log of a job of a checkout, since FLARE packs them away when it ends."""
    folder, job, site_file, found = scratch / "poc", scratch / "ours", scratch / "site.yaml", dict[Path, str]()
    paths = (str(root), str(root / "custom"), os.environ.get("PYTHONPATH"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    shutil.rmtree(job, ignore_errors=True)
    write = [sys.executable, "-c", _WRITE, str(job), str(rounds), str(site_file)]
    subprocess.run(write, cwd=root, env=environment, check=True)
    command = [sys.executable, "-m", "poc", "--job", str(job), "--sites", str(sites), "--folder", str(folder)]
    command += ["--run", "tls", "--site-file", str(site_file), "--timeout", str(_TIMEOUT_S), *options]
    until = time.monotonic() + _TIMEOUT_S + 60
    with open(scratch / "poc.txt", "w", encoding="utf-8") as console:
        process = subprocess.Popen(command, cwd=root, env=environment, stdout=console, stderr=subprocess.STDOUT)
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


def _split(log: str, rounds: int) -> tuple[float, float, float, float]:
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
    if min(len(downs), len(ups)) < rounds:
        raise RuntimeError("a site's log lacks a round.")
    if 0 < len(fetches) < rounds:
        raise RuntimeError("a site's log lacks the fetching of a round.")
    fetched = mean(fetches[1:rounds]) if fetches else 0.0
    return mean(downs[1:rounds]), mean(ups[1:rounds]), mean(works[1:rounds]), fetched
