"""Seconds of `import fedretina` in a fresh process: a site pays them in every simulator task."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common import Result, fresh_python, result, target

_TARGET_S = 0.2
_REPEATS = 15
_TIMED = "import time; began = time.perf_counter(); import fedretina; print(time.perf_counter() - began)"


def measure(scratch: Path, quick: bool = False) -> Result:
    """Time the import within new interpreters, so that what starting one costs is no part of it.

    Args:
        scratch: Not used.
        quick: Few repeats, for a look whether it works.
    """
    # The first process reads the files from disk and is not counted.
    imported = [float(fresh_python(["-c", _TIMED], 60)) for _ in range(1 + (3 if quick else _REPEATS))][1:]
    return result(
        "Import",
        "Seconds that `import fedretina` takes in a process that has just started.",
        {"import fedretina": {"import, s": imported}},
        [target("import, s", "under", _TARGET_S)],
        {"torch threads": 1},
    )
