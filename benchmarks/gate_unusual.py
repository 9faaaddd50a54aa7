"""What looking at unusual photographs finds: `python -m benchmarks.gate_unusual ROW RUN --site NAME=FILE ...`.

Each site's model of a finished run of the plain loop is given ill eyes of every other site, from their validation and
test images, and its own test images. Counted is which are stopped, which are unusual, and which pass with and without
that. The counts go to benchmarks/results/gate_unusual.json, from which docs/gate.md shows them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import RESULTS
from fedretina.data.site_data import SiteData, load_site_data
from fedretina.prediction.predictor import ImageRow, Predictor
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import read_data_settings
from fedretina.storage import read_json, write_json

STORED = RESULTS / "gate_unusual.json"
_AWAY, _OWN, _BATCH = 100, 300, 60
_UNUSUAL = "unusual for this site"


def main() -> int:
    """Measure one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", help="under which it is stored")
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--site", action="append", required=True, metavar="NAME=FILE", help="a site and its site file")
    parser.add_argument("--cache", type=Path, required=True)
    chosen = parser.parse_args()
    files = dict(pair.split("=", 1) for pair in chosen.site)
    models = {site: Predictor.load(chosen.run / site, "cpu") for site in files}
    images = Experiment.model_validate(next(iter(models.values())).card["settings"]).images
    data = {
        site: load_site_data(site, read_data_settings(Path(file), site), images, 1, chosen.cache / site)
        for site, file in files.items()
    }
    stored = read_json(STORED) if STORED.exists() else {}
    write_json(STORED, {**stored, chosen.row: {site: _of_site(model, site, data) for site, model in models.items()}})
    return 0


def _of_site(model: Predictor, site: str, data: Mapping[str, SiteData]) -> dict[str, Any]:
    """Counts of the site's own images, and of the ill eyes of each other site."""
    away: dict[str, dict[str, int]] = {}
    for other in data:
        if other != site:
            parts = [_counted(model, data[other], split, _AWAY, ill=True) for split in ("val", "test")]
            away[other] = {name: sum(one[name] for one in parts) for name in parts[0]}
    return {"own": _counted(model, data[site], "test", _OWN, ill=False), "away": away}


def _counted(model: Predictor, data: SiteData, name: str, most: int, *, ill: bool) -> dict[str, int]:
    split = data.split(name)
    labels = split.labels.numpy()
    rows = np.flatnonzero(np.isin(labels, data.scheme.referable_classes) if ill else labels != _ungradable(data))
    rows = rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)]
    said: list[ImageRow] = []
    for begin in range(0, len(rows), _BATCH):
        some = torch.from_numpy(rows[begin : begin + _BATCH])
        said += model.answer([str(at) for at in some], split.images[some])
    reasons = [set(one.referral.reasons) for one in said]
    return {
        "images": len(said),
        "stopped": sum(bool(one.fault) for one in said),
        "unusual": sum(_UNUSUAL in one for one in reasons),
        "passed": sum(not one for one in reasons),
        "passed_before": sum(not one - {_UNUSUAL} for one in reasons),
    }


def _ungradable(data: SiteData) -> int:
    grade = data.scheme.ungradable_class
    return -2 if grade is None else grade


if __name__ == "__main__":
    raise SystemExit(main())
