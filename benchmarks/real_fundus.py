"""Rows over the four real fundus sites through the FLARE simulator: `python -m benchmarks.real_fundus --sites FILE`.

The images are not part of the project. FILE is a site file with `{SITE_NAME}` in its path, as `FEDRETINA_SITE_FILE`
takes it, for aptos2019, eyepacs, idrid and odir5k (`fedretina data import`). Runs that are done are not run again;
their results are stored whole, and `python -m benchmarks.real_fundus --render` writes docs/real_fundus.md from them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import RESULTS, ROOT
from fedretina.jobs import job_files, write_job
from fedretina.storage import write_json
from fedretina_papers.packed import pack, unpack

SITES = ("aptos2019", "eyepacs", "idrid", "odir5k")
STORED = RESULTS / "real_fundus.jsonl.gz"
EXPERIMENT: dict[str, Any] = {
    "quorum": 4,
    "phases": [{"name": "train", "rounds": 15}],
    "images": {"image_size": 96},
    "network": {"encoder": "efficientnet_lite0", "weights": {"source": "package"}},
    "training": {"batch_size": 32, "learning_rate": 0.02, "momentum": 0.9, "threads": 1},
    "phantom_images": 0,
}


def main() -> int:
    """Run the rows and seeds that are not stored yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", help="site file with {SITE_NAME} in its path")
    parser.add_argument("--rows", default="feduaa,singleset")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--scratch", type=Path, default=ROOT / "scratch")
    parser.add_argument("--render", action="store_true", help="only write the page")
    chosen = parser.parse_args()
    if not chosen.render:
        done = chosen.scratch / "stored"
        done.mkdir(parents=True, exist_ok=True)
        if STORED.exists() and not any(done.iterdir()):
            unpack(STORED, done)
        for seed in (int(text) for text in chosen.seeds.split(",")):
            for row in chosen.rows.split(","):
                if not (done / f"{row}-{seed}.json").exists():
                    _run(row, seed, chosen.sites, chosen.scratch)
                    pack(done, STORED)
    from benchmarks.real_fundus_page import write_page

    write_page(STORED)
    return 0


def _run(row: str, seed: int, site_file: str, scratch: Path) -> None:
    name = f"{row}-{seed}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=scratch) as folder:
        job = Path(folder) / "job"
        files = job_files(row, sites=SITES)
        words = {"name": row, "row": row, "seed": seed, **EXPERIMENT}
        write_job(job, {**files, "app/config/experiment.yaml": yaml.safe_dump(words)})
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "FEDRETINA_RUN": name,
            "FEDRETINA_SITE_FILE": site_file,
            "FEDRETINA_STATE_ROOT": str(scratch / "runs"),
        }
        nvflare = str(Path(sys.executable).parent / "nvflare")
        command = [nvflare, "simulator", str(job), "-w", f"{folder}/ws", "-t", str(len(SITES))]
        with open(scratch / f"{name}.log", "w", encoding="utf-8") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    results = json.loads((scratch / "runs" / name / "server" / "results.json").read_text(encoding="utf-8"))
    stored = {"seconds": round(time.monotonic() - began), "results": results}
    write_json(scratch / "stored" / f"{name}.json", stored)
    print(f"{name}: {stored['seconds']} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
