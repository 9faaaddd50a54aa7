"""One benchmark in this process: `python -m benchmarks.one NAME SCRATCH OUT [--quick]`; `benchmarks` starts it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(name: str, scratch: Path, out: Path, quick: bool) -> None:
    """Measure and write the figures."""
    measured = importlib.import_module(f"benchmarks.{name}").measure(scratch, quick=quick)
    out.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), "--quick" in sys.argv[4:])
