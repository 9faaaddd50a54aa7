"""Seconds of a simulated run's start, rounds and end: `jobs/feduaa` of this checkout, and of an older one beside it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import BESIDE, ROOT, Result, commit_of, result, target
from benchmarks.processes import end_tree

_TIMEOUT_S, _TURNS, _SITES = 600.0, 2, 5
_ALIKE, _DEMO = "ours without a verdict", "s of the job and show"
_AIMS = {"s of the first round": 0.5, "s of finalise": 0.5, _DEMO: 0.6}
"""What was to take at most this share of the older commit's time."""
_SHOW = "from fedretina.cli import main; main(prog_name='fedretina')"
_LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\b.*?(train|finalise)-(\d{4}): (begun|done)")
_QUICK = {"phases": [{"name": "train", "rounds": 1}], "images": {"image_size": 32}, "phantom_images": 24}


def measure(scratch: Path, quick: bool = False) -> Result:
    """Run the job in `nvflare simulator` with one thread, its default, and with one a site, and read its log.

    Args:
        scratch: For jobs, workspaces and the sites' state.
        quick: One round over small images, with one thread alone.

    Raises:
        RuntimeError: A run failed, took too long, or its log lacks a step.
        subprocess.CalledProcessError: `fedretina show` failed.
    """
    beside = os.environ.get(BESIDE)
    older = Path(beside).resolve() if beside else None
    runs: dict[str, tuple[Path, dict[str, Any]]] = {"ours": (ROOT, _QUICK if quick else {})}
    if older is not None:
        # The commit that figures are taken beside writes no verdict: ours without one does as much.
        runs |= {_ALIKE: (ROOT, {**runs["ours"][1], "verdict": "off"}), "older": (older, runs["ours"][1])}
    cases: dict[str, dict[str, list[float]]] = {}
    for title, threads, turns in (("one thread, the default", 1, _TURNS), ("a thread a site", _SITES, 1)):
        if quick and threads > 1:
            continue
        found = cases.setdefault(title, {})
        for _ in range(1 if quick else turns):
            for name, (root, settings) in runs.items():
                for part, seconds in _run(root, scratch, threads, settings).items():
                    found.setdefault(f"{name}, {part}", []).extend(seconds)
        for name, part in itertools.product(("ours", _ALIKE), (*_AIMS, "s of the run")) if older is not None else ():
            pairs = zip(found[f"{name}, {part}"], found[f"older, {part}"], strict=True)
            found[f"{name} / older, {part}"] = [one / other for one, other in pairs]
    told = {
        "older commit": commit_of(older)[:8] if older is not None else "none",
        "rounds": 1 if quick else "the job's",
    }
    return result(
        "Start and end of a run",
        "Seconds of `nvflare simulator jobs/feduaa` (phantoms): the first round, which holds the start of the sites' "
        "processes, those after it, `finalise`, all steps together, and the job with `fedretina show`, which is what "
        "`make demo` does after its installation. Beside it, run in turn, the same job of an older commit.",
        cases,
        [target(f"ours / older, {part}", "at most", share) for part, share in _AIMS.items()],
        told,
        [
            "A step is timed at the server, from its beginning to its record on the disk; the job and `show` by the "
            "clock.",
            "`finalise` does more than at 8b41e2d6, where that is the older commit: it compares the federation's model "
            "with the site's own and writes a verdict, a second report and a second gate. Without a verdict: the job "
            "with `verdict: off`.",
        ],
    )


def _run(root: Path, scratch: Path, threads: int, settings: Mapping[str, Any]) -> dict[str, list[float]]:
    folder = scratch / "run"
    shutil.rmtree(folder, ignore_errors=True)
    job = Path(shutil.copytree(root / "jobs" / "feduaa", folder / "feduaa"))
    if settings:
        file = job / "app" / "config" / "experiment.yaml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text("utf-8")), **settings}), encoding="utf-8")
    environment = {
        **os.environ,
        "HOME": str(folder),  # FLARE writes its own settings there
        "PYTHONPATH": f"{root / 'custom'}",
        "FEDRETINA_STATE_ROOT": str(folder / "fedretina_runs"),  # where `fedretina show` looks
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(folder / "workspace")]
    command += ["-t", str(threads)]
    console = folder / "console.txt"
    began = time.monotonic()
    with open(console, "w", encoding="utf-8") as handle:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=handle, stderr=subprocess.STDOUT)
        try:
            code = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the job did not end in {_TIMEOUT_S:.0f} s.") from error
        finally:
            end_tree(process)
    if code == 0:
        show = [sys.executable, "-c", _SHOW, "show"]
        subprocess.run(show, cwd=folder, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=True)
    demo = time.monotonic() - began
    logs = [path.read_text("utf-8", errors="replace") for path in (folder / "workspace" / "server").rglob("log.txt")]
    steps = step_times("\n".join(logs))
    rounds = [seconds for name, (seconds, _) in sorted(steps.items()) if name.startswith("train")]
    if code != 0 or not rounds or "finalise-0000" not in steps:
        tail = "\n".join(console.read_text("utf-8").splitlines()[-20:])
        raise RuntimeError(f"the job ended with {code} after {len(rounds)} rounds:\n{tail}")
    whole = steps["finalise-0000"][1] - min(end - seconds for seconds, end in steps.values())
    return {
        "s of the first round": rounds[:1],
        "s a round after it": rounds[1:],
        "s of finalise": [steps["finalise-0000"][0]],
        "s of the run": [whole],
        _DEMO: [demo],
    }


def step_times(log: str) -> dict[str, tuple[float, float]]:
    """Of each step of a server's log its seconds and when it ended, in seconds of an epoch."""
    begun: dict[str, float] = {}
    found: dict[str, tuple[float, float]] = {}
    for line in log.splitlines():
        if matched := _LINE.match(line):
            at = datetime.strptime(matched[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
            name = f"{matched[2]}-{matched[3]}"
            if matched[4] == "begun":
                begun.setdefault(name, at)
            elif name in begun:
                found[name] = (at - begun[name], at)
    return found
