"""What the verdict keeps at small hospitals: `python -m benchmarks.small_sites fundus --site NAME=FILE ...`.

Of every site n training images are drawn by whole patients, and a quarter as many to validate on; the test images are
all of them, the same in every draw. Each run is one of the product's own, in the plain loop, and its figures are those
of the verdict that every site ends with. Runs that are stored are not run again; `--render` writes
docs/small_sites_study.md from what is stored. The images are not part of the project.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT, machine
from fedretina.data.site_data import SiteData, load_site_data
from fedretina.exchange.moved import run_moved
from fedretina.loop import run_loop
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.scalars import MIN_COUNT
from fedretina.settings.site import read_data_settings
from fedretina.storage import read_json, write_json
from fedretina_papers.draws import drawn
from fedretina_papers.packed import pack, unpack

STORED = RESULTS / "small_sites.jsonl.gz"
ALL = 1_000_000
"""Stands for every training image that a site has."""
BASE: dict[str, Any] = {
    "phantom_images": 0,
    "images": {"image_size": 224},
    "network": {"encoder": "efficientnet_lite0", "weights": {"source": "package"}},
    "training": {"threads": 1},
    "report": {"page": False, "draws": 200},
}
SETS: Mapping[str, dict[str, Any]] = {"fundus": {}, "oct": {"images": {"modality": "oct"}}}
_CLASSES: Mapping[str, dict[str, Any]] = {"oct": {"classes": ["normal", "amd", "dme"]}}
_SUMS = {"row": "analytic"}
ROWS: Mapping[str, dict[str, Any]] = {
    "federated": {**_SUMS, "phases": [{"name": "sums", "sums": {"answer": "federated"}}]},
    "both": {**_SUMS, "phases": [{"name": "sums", "sums": {"answer": "both"}}]},
    "federated_held": {**_SUMS, "phases": [{"name": "sums", "sums": {"answer": "federated"}}]},
    "both_held": {**_SUMS, "phases": [{"name": "sums", "sums": {"answer": "both"}}]},
}
"""Settings of each row of the table; what stays alone stands in the verdict of each of them."""
HELD = ("federated_held", "both_held")
"""The rows whose sums hold no grade of few patients, as a hospital's default policy has it; the others hold all."""


def main() -> int:
    """Run what is not stored yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(SETS), nargs="?")
    parser.add_argument("--name", help="under which the runs are stored, where it is not the set's name")
    parser.add_argument("--site", action="append", default=[], metavar="NAME=FILE", help="a site and its site file")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--sizes", default="15,30,60,120,all")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--scratch", type=Path, default=ROOT / "scratch" / "small_sites")
    parser.add_argument("--render", action="store_true", help="only write the page")
    chosen = parser.parse_args()
    if not chosen.render:
        files = dict(pair.split("=", 1) for pair in chosen.site)
        sizes = [ALL if text == "all" else int(text) for text in chosen.sizes.split(",")]
        _run_all(
            chosen.set, chosen.name or chosen.set, files, chosen.rows.split(","), sizes, chosen.draws, chosen.scratch
        )
    from benchmarks.small_sites_page import PAGE, write_page

    write_page(STORED, PAGE)
    return 0


def _run_all(
    kind: str,
    name: str,
    files: Mapping[str, str],
    rows: Sequence[str],
    sizes: Sequence[int],
    draws: int,
    scratch: Path,
) -> None:
    done = scratch / "stored"
    done.mkdir(parents=True, exist_ok=True)
    if STORED.exists() and not any(done.iterdir()):
        unpack(STORED, done)
    whole: dict[str, SiteData] = {}
    for draw in range(draws):
        for size in sizes:
            for row in rows:
                file = done / f"{name}-{row}-{'all' if size == ALL else size}-{draw}.json"
                if file.exists() or (size == ALL and draw):
                    continue
                words = merged(merged(BASE, SETS[kind]), ROWS[row])
                experiment = Experiment.resolve({**words, **_CLASSES.get(kind, {}), "seed": draw + 1})
                whole = whole or _load(files, experiment, scratch)
                fewest = MIN_COUNT if row in HELD else 1
                sites = {site: drawn(data, size, draw, {}, fewest) for site, data in whole.items()}
                write_json(
                    file, _run(experiment, sites, scratch) | {"set": name, "row": row, "size": size, "draw": draw}
                )
                print(file.name, flush=True)
        pack(done, STORED)


def _load(files: Mapping[str, str], experiment: Experiment, scratch: Path) -> dict[str, SiteData]:
    settings = {site: read_data_settings(Path(file), site) for site, file in files.items()}
    return {
        site: load_site_data(site, settings[site], experiment.images, experiment.seed, scratch / "cache" / site)
        for site in files
    }


def _run(experiment: Experiment, sites: Mapping[str, SiteData], scratch: Path) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        results = run_loop(experiment, sites, Path(folder), "run")
        seconds = time.monotonic() - began
        finals = {site: Path(folder) / "run" / site / "final" / "figures.json" for site in sites}
        # A site none of whose grades may be in the sums has no result.
        verdicts = {site: read_json(path)["verdict"] for site, path in finals.items() if path.exists()}
    return {
        "sites": verdicts,
        "images": {site: dict(data.counts) for site, data in sites.items()},
        "seconds": round(seconds, 1),
        "bytes_up": run_moved(results).up,
        "settings": experiment.agreed(),
        "machine": machine(),
    }


if __name__ == "__main__":
    raise SystemExit(main())
