"""What fewer bits on the wire cost: `python -m benchmarks.wire_codec fundus --site NAME=FILE ...`.

Each row is run with each codec from the same seeds, over real sites, on an encoder with the ImageNet weights of its
package, of which the first stages stand still. What differs between two runs of a seed is the codec alone. Runs that
are stored are not run again; `--sizes` encodes updates of the OCT paper's network; `--render` writes
docs/wire_codec.md from what is stored. The images are not part of the project.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import RESULTS, ROOT, machine
from fedretina.data.site_data import SiteData, load_site_data
from fedretina.exchange.moved import moving_steps, step_moved
from fedretina.loop import run_loop
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.site import read_data_settings
from fedretina.storage import write_json
from fedretina_papers.draws import drawn
from fedretina_papers.packed import pack, unpack
from fedretina_papers.run_course import moved_by_phase

STORED = RESULTS / "wire_codec.jsonl.gz"
CODECS = ("none", "bf16", "int8", "int4")
TESTED = 200
"""Test images of a site."""
_PLAIN = {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 8}
BASE: dict[str, Any] = {
    "phantom_images": 0,
    "verdict": "off",
    "images": {"image_size": 160},
    "network": {"encoder": "efficientnet_lite0", "weights": {"source": "package"}, "frozen": 4},
    "augment": {"rotate_degrees": 0},
    "training": {"threads": 1, "epochs": 1, **_PLAIN},
    "report": {"page": False, "draws": 10},
}


class Set(NamedTuple):
    """What rows are run on.

    Attributes:
        images: Training images of a site; it validates on a quarter as many.
        rounds: Long enough that the rows learn: what is lost by a row that answers one grade to all cannot be seen.
        settings: Laid over `BASE`.
    """

    images: int
    rounds: int
    settings: dict[str, Any]


SETS: Mapping[str, Set] = {
    "fundus": Set(80, 20, {}),
    # The OCT paper's rate falls along a cosine.
    "oct": Set(160, 40, {"images": {"modality": "oct"}, "training": {"schedule": "cosine"}}),
    "oct_constant": Set(160, 40, {"images": {"modality": "oct"}}),
}
ROWS: Mapping[str, dict[str, Any]] = {
    "fedavg": {"row": "fedavg"},
    "scaffold": {"row": "scaffold"},
    "scaffold_option2": {"row": "scaffold", "correction": {"update": "option2"}},
}
FIGURES = ("test_auc", "test_accuracy")


def main() -> int:
    """Run what is not stored yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(SETS), nargs="?")
    parser.add_argument("--site", action="append", default=[], metavar="NAME=FILE", help="a site and its site file")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=ROOT / "scratch" / "wire_codec")
    parser.add_argument("--render", action="store_true", help="only write the page")
    parser.add_argument(
        "--sizes", action="store_true", help="encode updates of the OCT paper's network, and store that"
    )
    chosen = parser.parse_args()
    if chosen.sizes:
        from benchmarks.wire_codec_sizes import write_sizes

        write_sizes()
    elif not chosen.render:
        files = dict(pair.split("=", 1) for pair in chosen.site)
        run_all(chosen.set, files, chosen.rows.split(","), chosen.codecs.split(","), chosen.seeds, chosen.scratch)
    from benchmarks.wire_codec_page import write_page

    write_page()
    return 0


def run_all(
    kind: str, files: Mapping[str, str], rows: Sequence[str], codecs: Sequence[str], seeds: int, scratch: Path
) -> None:
    """Run each row with each codec, seed after seed, and store every run as it ends."""
    done = scratch / "stored"
    done.mkdir(parents=True, exist_ok=True)
    if STORED.exists() and not any(done.iterdir()):
        unpack(STORED, done)
    whole: dict[str, SiteData] = {}
    for seed in range(1, seeds + 1):
        for row in rows:
            for codec in codecs:
                file = done / f"{kind}-{row}-{codec}-{seed}.json"
                if file.exists():
                    continue
                experiment = _experiment(SETS[kind], row, codec, seed)
                whole = whole or _load(files, experiment, scratch)
                sites = {site: drawn(data, SETS[kind].images, seed, {"test": TESTED}) for site, data in whole.items()}
                write_json(file, _run(experiment, sites, scratch) | {"set": kind, "row": row, "codec": codec})
                print(file.name, flush=True)
        pack(done, STORED)


def _experiment(of: Set, row: str, codec: str, seed: int) -> Experiment:
    own = {"phases": [{"name": "train", "rounds": of.rounds}], "exchange": {"codec": codec}, "seed": seed}
    return Experiment.resolve(merged(merged(BASE, of.settings), {**ROWS[row], **own}))


def _load(files: Mapping[str, str], experiment: Experiment, scratch: Path) -> dict[str, SiteData]:
    settings = {site: read_data_settings(Path(file), site) for site, file in files.items()}
    return {
        site: load_site_data(site, settings[site], experiment.images, 1, scratch / "cache" / site) for site in files
    }


def _commonest(data: SiteData) -> float:
    """Accuracy on a site's test images of its commonest training grade: what every row is beside."""
    grade = data.split("train").labels.mode().values
    return float((data.split("test").labels == grade).double().mean())


def _run(experiment: Experiment, sites: Mapping[str, SiteData], scratch: Path) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        results = run_loop(experiment, sites, Path(folder), "run")
    steps = moving_steps(results)
    return {
        "seed": experiment.seed,
        "sites": {site: {name: own.get(name) for name in FIGURES} for site, own in results["sites"].items()},
        "images": {site: dict(data.counts) for site, data in sites.items()},
        "commonest": {site: _commonest(data) for site, data in sites.items()},
        "seconds": round(time.monotonic() - began, 1),
        "moved": moved_by_phase(results),
        "bytes_up": [step_moved(step).up for step in steps],
        "bytes_down": [step_moved(step).down for step in steps],
        "settings": experiment.agreed(),
        "machine": machine(),
    }


if __name__ == "__main__":
    raise SystemExit(main())
