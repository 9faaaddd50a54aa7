"""How far honest updates lie apart, by the measure that refuses hostile ones: `python -m benchmarks.proportions`.

Plain loop over phantom hospitals of very different sizes, and over the real sites of ../shared/data where they are. The
check itself is switched off by a bound that nothing reaches. Runs that are stored are not run again; `--render` writes
the table of docs/robust_rules.md from what is stored. A run takes half a minute of one core.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT, machine
from benchmarks.render import machine_line
from fedretina.data.site_data import SiteData, load_site_data
from fedretina.errors import FedretinaError
from fedretina.loop import run_loop
from fedretina.rows import ROWS
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import SiteDataSettings, read_site_settings
from fedretina.storage import write_json, write_text
from fedretina_papers.engine.table import listing
from fedretina_papers.markdown import between

STORED = RESULTS / "proportions.json"
PAGE = ROOT / "docs" / "robust_rules.md"
SHARED = ROOT.parent / "shared" / "data"
_BEGIN, _END = "<!-- begin proportions -->", "<!-- end proportions -->"
_SEED = 3
_RATE = 0.05
_SIZES = {"site-1": 24, "site-2": 24, "site-3": 400}
PHANTOMS = (
    *("scaffold", "oct_moco_v3_scaffold", "fedee_activity", "feddc", "mdt", "fedap", "oct_simclr_fedavg"),
    *("fedee_dermoscopy", "fedavg", "feduaa", "feddyn", "fedee"),
)
REAL = {"real fundus": "fundus", "real OCT": "oct"}
"""Real sites and what their images are: every row of that modality that exchanges something runs over them."""
_log = logging.getLogger(__name__)


def words(row: str, real: bool) -> dict[str, Any]:
    """The settings of a case: short, and with a learning rate five times the rows' own."""
    listed = ROWS[row].settings.get("phases", [{"name": "train"}])
    short = {"training": {"epochs": 1, "batch_size": 8, "learning_rate": _RATE}}
    activity = row == "fedee_activity"
    encoder = "signal_cnn" if activity else "efficientnet_lite0"
    return {
        "row": row,
        "seed": _SEED,
        "phases": [
            {"name": one["name"], "rounds": 3 if real else 2, **(short if "training" in one else {})} for one in listed
        ],
        "images": {"length": 128} if activity else {"image_size": 48 if real else 32},
        "network": {"encoder": encoder, **({"weights": {"source": "package"}} if real else {})},
        "training": {"batch_size": 8, "learning_rate": _RATE, "threads": 1},
        "aggregation": {"proportion": 1e6},
        "report": {"draws": 10, "page": False},
    }


def phantom_sites(experiment: Experiment, cache: Path) -> dict[str, SiteData]:
    """Two small phantom hospitals and one of many times their size."""
    least = 48 if experiment.images.modality == "heart_sound" else 0
    return {
        name: load_site_data(
            name, SiteDataSettings(phantom_images=max(size, least)), experiment.images, experiment.seed, cache / name
        )
        for name, size in _SIZES.items()
    }


def real_sites(experiment: Experiment, data: str, cache: Path) -> dict[str, SiteData]:
    """The real sites, each with its own criteria; of two of them few images, so that they take fewer steps."""
    sys.path.insert(0, str(ROOT / "tests"))
    from real_sites import write_real_oct_sites, write_real_sites

    write = write_real_sites if data == "real fundus" else write_real_oct_sites
    found = {}
    for at, limit in enumerate(({"train": 24, "val": 20, "test": 20}, {"train": 400, "val": 20, "test": 20})):
        folder = cache / f"hospitals-{at}"
        pattern = write(SHARED, folder, limit)
        for number, site in enumerate(sorted(path.name for path in folder.iterdir())):
            if number % 2 == at:
                settings = read_site_settings({"site_file": str(pattern)}, site, folder)
                found[site] = load_site_data(
                    site, settings.data, experiment.images, experiment.seed, cache / "cache" / site
                )
    return found


def rows_of(modality: str) -> list[str]:
    """The rows that a federation of such sites could run."""
    found = {row: Experiment.resolve({"row": row}) for row in ROWS}
    return [
        row for row, one in found.items() if one.images.modality == modality and one.exchange.personal != "everything"
    ]


def measure(data: str, row: str) -> dict[str, Any]:
    """Run one case."""
    experiment = Experiment.resolve(words(row, data != "phantoms"))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sites = phantom_sites(experiment, root / "cache") if data == "phantoms" else real_sites(experiment, data, root)
        results = run_loop(experiment, sites, root, "r")
    found = [
        (value, step["step"], site) for step in results["steps"] for site, value in step.get("proportion", {}).items()
    ]
    largest, step, site = max(found)
    images = {name: one.counts["train"] for name, one in sites.items()}
    return {"data": data, "row": row, "images": images, "largest": largest, "step": step, "site": site}


def table(stored: Mapping[str, Any]) -> str:
    """What is stored, as the page shows it."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "data": lambda case: str(case["data"]),
        "row": lambda case: f"`{case['row']}`",
        "training images by site": lambda case: ", ".join(str(number) for number in case["images"].values()),
        "largest": lambda case: f"{case['largest']:.3g}",
        "where": lambda case: f"{case['site']}, {case['step']}",
    }
    lines = [
        "Written by `python -m benchmarks.proportions --render` from "
        "[the stored runs](../benchmarks/results/proportions.json). Largest proportion of an honest update in a run.",
        "",
        *listing(stored["cases"], columns, right=(3,)),
    ]
    worst = max(stored["cases"], key=lambda case: case["largest"])
    bound = Experiment().aggregation.proportion
    assert bound is not None
    lines += [
        f"The largest of all is {worst['largest']:.3g}, `{worst['row']}` on {worst['data']}; the default bound of "
        f"{bound:g} is {bound / worst['largest']:.3g} times as large.",
        "",
        f"Sizes: plain loop, seed {_SEED}, one thread, batches of 8, SGD {_RATE} (five times the rows' own; rows with "
        "Adam too), efficientnet_lite0, or the row's own encoder for signals. Phantoms: 32 px (signals: 128 values), "
        "random weights, 2 rounds per phase, of one epoch. Real: 48 px, ImageNet weights, 3 rounds per phase.",
        "",
        machine_line(stored["machine"]),
    ]
    return "\n".join(lines)


def main() -> None:
    """Run what is not stored, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--render", action="store_true", help="write the table of docs/robust_rules.md and run nothing")
    parser.add_argument("--data", action="append", help="phantoms, real fundus or real OCT; by default all")
    chosen = parser.parse_args()
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {"cases": []}
    if chosen.render:
        write_text(PAGE, between(PAGE.read_text(encoding="utf-8"), _BEGIN, _END, table(stored)))
        return
    logging.basicConfig(level=logging.WARNING)
    listed = [("phantoms", row) for row in PHANTOMS]
    listed += [(data, row) for data, modality in REAL.items() for row in rows_of(modality) if SHARED.is_dir()]
    known = {(case["data"], case["row"]) for case in stored["cases"]}
    for data, row in listed:
        if (data, row) not in known and (not chosen.data or data in chosen.data):
            try:
                case = measure(data, row)
            except FedretinaError as error:
                _log.warning("%s, %s: %s", data, row, error)
                continue
            stored["cases"] = sorted([*stored["cases"], case], key=lambda one: listed.index((one["data"], one["row"])))
            stored["machine"] = machine()
            write_json(STORED, stored)


if __name__ == "__main__":
    main()
