"""What the OCT paper's run would move: three rounds of its network over phantom sites, encoded as in a run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, machine
from fedretina.data.site_data import load_site_data
from fedretina.exchange.moved import moving_steps
from fedretina.loop import run_loop
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.site import SiteDataSettings
from fedretina.storage import write_json
from fedretina_papers.run_course import moved_by_phase

SIZES = RESULTS / "wire_codec_sizes.json"
ROUNDS, SITES = 150, 4
"""Of the paper's run."""
_BASE: dict[str, Any] = {
    "row": "oct_scaffold",
    "verdict": "off",
    "network": {"encoder": "efficientnet_b4"},
    "images": {"image_size": 96},
    "phases": [{"name": "train", "rounds": 3}],
    "phantom_images": 48,
    "training": {"threads": 1},
    "report": {"page": False, "draws": 10},
}
_SGD = {"epochs": 1, "optimizer": "sgd", "learning_rate": 0.03, "momentum": 0.0, "schedule": "constant"}
_ADAM = {"epochs": 1, "optimizer": "adam", "learning_rate": 1e-3, "schedule": "constant", "encoder_factor": 1.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "SCAFFOLD, float32": ("none", {"training": _SGD}),
    "SCAFFOLD, int8, controls sent": ("int8", {"training": _ADAM}),
    "SCAFFOLD, int8, controls follow": ("int8", {"training": _SGD, "correction": {"update": "option2"}}),
    "SCAFFOLD, int4, controls sent": ("int4", {"training": _ADAM}),
    "SCAFFOLD, int4, controls follow": ("int4", {"training": _SGD, "correction": {"update": "option2"}}),
    "SCAFFOLD, int4, controls follow, first 7 of 8 stages frozen": (
        "int4",
        {"training": _SGD, "correction": {"update": "option2"}, "network": {"frozen": 7, "frozen_cache": "lenient"}},
    ),
}
"""By what the page calls it: the codec, and the settings."""


def write_sizes() -> None:
    """Run each case for three rounds and store what its messages weigh.

    All sites have the same images, hence as many steps: then SCAFFOLD's controls can follow in both directions.
    """
    found: dict[str, Any] = {"rounds": ROUNDS, "sites": SITES, "machine": machine(), "cases": {}}
    for name, (codec, words) in CASES.items():
        phase = {"name": "train", "rounds": 3, "training": {"batch_size": 8, **words["training"]}}
        more = {key: value for key, value in words.items() if key != "training"}
        experiment = Experiment.resolve(merged(_BASE, {"phases": [phase], "exchange": {"codec": codec}, **more}))
        with tempfile.TemporaryDirectory() as folder:
            settings = SiteDataSettings(phantom_images=experiment.phantom_images)
            one = load_site_data("site-1", settings, experiment.images, 1, Path(folder) / "cache")
            sites = {name: replace(one, name=name) for name in ("site-1", "site-2")}
            results = run_loop(experiment, sites, Path(folder), "run")
        steps = moving_steps(results)
        learnt = [step for step in steps if step["task"] == "train"]
        found["cases"][name] = {
            "moved": moved_by_phase(results),
            "up": [max(step["bytes_up"].values()) for step in learnt],
            "down": [step["bytes_down"] for step in learnt],
            "end": [step["bytes_down"] for step in steps if step["task"] != "train"],
        }
        print(name, found["cases"][name], flush=True)
    write_json(SIZES, found)
