"""Run benchmarks one after the other, store their figures and render the page: `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import NAMES, PAGE, RESULTS, ROOT, commit_of
from benchmarks.processes import end_tree
from benchmarks.render import load, page, section

_TIMEOUT_S = 1800.0


def main() -> int:
    """Run what is named, all by default; the number of benchmarks that failed is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ({', '.join(NAMES)}); all by default")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that all works; stores nothing")
    parser.add_argument(
        "--scratch", type=Path, default=ROOT / "scratch", help="folder for up to 7 GB, erased at the end"
    )
    parser.add_argument("--resume", action="store_true", help="pass over those whose figures are of this commit")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}: the benchmarks are {', '.join(NAMES)}")
    chosen.scratch.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    failed = 0
    commit = commit_of(ROOT)
    for name in chosen.names or NAMES:
        changed = _changed()
        if chosen.resume and not chosen.quick and not changed and _measured(name) == commit:
            print(f"{name}: measured on this commit", flush=True)
            continue
        began, busy = time.monotonic(), round(os.getloadavg()[0], 2)
        print(f"{name} ...", flush=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=chosen.scratch) as folder:
            out = Path(folder) / "result.json"
            if not _run(name, Path(folder), out, chosen.quick):
                failed += 1
                print(f"{name}: failed after {time.monotonic() - began:.0f} s; its stored figures stay", flush=True)
                continue
            found = json.loads(out.read_text(encoding="utf-8"))
        found |= {"commit": commit, "load_before": busy, "seconds": round(time.monotonic() - began)}
        found |= {"changed": True} if changed else {}
        if not chosen.quick:
            (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print("\n".join(section(found)), flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s\n", flush=True)
    if not chosen.quick:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(load(RESULTS, NAMES)), encoding="utf-8")
    return failed


def _changed() -> bool:
    """Whether what is measured is known to differ from the commit that stands beside its figures."""
    read = ("custom/fedretina", "jobs", "benchmarks/*.py")
    command = ["git", "status", "--porcelain", "--", *read]
    return bool(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip())


def _measured(name: str) -> str | None:
    """The commit that a benchmark's stored figures are of; None where what was measured differed from it."""
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return None if found.get("changed") else found.get("commit")


def _run(name: str, scratch: Path, out: Path, quick: bool) -> bool:
    """Measure in a fresh process, so that no benchmark warms up or fills the memory of another."""
    command = [sys.executable, "-m", "benchmarks.one", name, str(scratch), str(out)]
    process = subprocess.Popen([*command, "--quick"] if quick else command, cwd=ROOT)
    try:
        return process.wait(_TIMEOUT_S) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        end_tree(process)


if __name__ == "__main__":
    sys.exit(main())
