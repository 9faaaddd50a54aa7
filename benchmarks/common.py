"""What every benchmark needs: spreads over repeats, the machine, a case's figures, fresh processes."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
BESIDE = "FEDRETINA_BENCHMARK_BESIDE"
"""Environment variable that names a checkout of an older commit, which `start` and `round_tls` run in turn."""
NAMES = (
    *("local_training", "frozen_stages", "pipeline", "two_views", "server_memory", "import_time", "round_overhead"),
    *("round_tls", "start", "many_sites", "predict_throughput"),
)
"""The benchmarks in the order of the page; each is the module of its name."""

Result = dict[str, Any]
"""A benchmark's figures as they are stored; see `result`."""
_PACKAGES = ("fedretina", "nvflare", "torch", "monai", "numpy")


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Smallest, middle and largest of the repeats, and the repeats themselves in the order they were taken."""
    digits = [float(f"{value:.5g}") for value in values]
    return {"min": min(digits), "median": statistics.median(digits), "max": max(digits), "repeats": digits}


def target(figure: str, bound: str, value: float) -> dict[str, Any]:
    """What a figure's median must be in every case that has it.

    Args:
        figure: Name of the figure.
        bound: `at least`, `at most` or `under`.
        value: The bound's value.
    """
    return {"figure": figure, "bound": bound, "value": value}


def result(
    title: str,
    compared: str,
    cases: Mapping[str, Mapping[str, Sequence[float]]],
    goals: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> Result:
    """Put a benchmark's figures into the form that is stored and rendered.

    Args:
        title: Heading of its section.
        compared: Sentence that says what is compared with what.
        cases: Repeats by case and figure; a figure's name ends with its unit. One without repeats is left out: what it
            counts was over before it was looked at.
        goals: The targets; none where none was set.
        settings: Plain values that the figures depend on.
        notes: Sentences that a reader needs beside the figures.
    """
    figures = {
        case: {name: spread(values) for name, values in found.items() if values} for case, found in cases.items()
    }
    return {
        "title": title,
        "compared": compared,
        "targets": [dict(one) for one in goals],
        "settings": dict(settings),
        "notes": list(notes),
        "cases": figures,
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Processor, cores, memory, versions and date; no name and no path of this machine."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_after": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
    }


def commit_of(root: Path) -> str:
    """The commit of a checkout; empty where it is none."""
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return told.stdout.strip()


def fresh_python(arguments: Sequence[str], timeout_s: float) -> str:
    """Run this interpreter in a new process from the repository's root and return what it printed.

    Raises:
        subprocess.CalledProcessError: It failed.
        subprocess.TimeoutExpired: It took too long and was killed.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
        check=True,
    )
    return done.stdout


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
