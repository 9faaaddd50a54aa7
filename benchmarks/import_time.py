"""Seconds of `import fedretina` in a fresh process: a site pays them in every simulator task."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.common import Result, fresh_python, result, target

_TARGET_S = 0.2
_REPEATS = 15


def measure(scratch: Path, quick: bool = False) -> Result:
    """Time a bare interpreter and one that imports the package, in turn.

    Args:
        scratch: Not used.
        quick: Few repeats, for a look whether it works.
    """
    _seconds("import fedretina")  # the first process reads the files from disk
    bare: list[float] = []
    imported: list[float] = []
    for _ in range(3 if quick else _REPEATS):
        bare.append(_seconds("pass"))
        imported.append(_seconds("import fedretina"))
    over = [with_it - without for with_it, without in zip(imported, bare, strict=True)]
    figures = {"import, s": over, "interpreter and import, s": imported, "bare interpreter, s": bare}
    return result(
        "Import",
        "Seconds of a fresh process that imports `fedretina`, less those of the bare interpreter started just before.",
        {"import fedretina": figures},
        target("import, s", "under", _TARGET_S),
        {"torch threads": 1},
    )


def _seconds(statement: str) -> float:
    began = time.perf_counter()
    fresh_python(["-c", statement], 60)
    return time.perf_counter() - began
