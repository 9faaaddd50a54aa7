"""One hostile site of five against the robust rules, in the plain loop: `python -m benchmarks.hostile_site`.

Five phantom hospitals train FedUAA's network; one of them turns its honest update into an attack. Runs that are stored
are not run again; `--render` writes the figures of docs/robust_rules.md from what is stored. A run takes about 15 s of
one core.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import RESULTS, ROOT, machine
from fedretina.aggregation.coordinator import Coordinator
from fedretina.data.site_data import SiteData, load_site_data
from fedretina.errors import QuorumError, RefusedError, TrainingError
from fedretina.exchange.payload import Payload, Tensors
from fedretina.local.site import Site
from fedretina.seeds import generator
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import SiteDataSettings
from fedretina.storage import read_json, write_json
from fedretina_papers.packed import pack, unpack

STORED = RESULTS / "hostile_site.jsonl.gz"
SITES = ("site-1", "site-2", "site-3", "site-4", "site-5")
HOSTILE = "site-2"
EXPERIMENT: dict[str, Any] = {
    "row": "feduaa",
    "quorum": 5,
    "phases": [{"name": "train", "rounds": 3}],
    "images": {"image_size": 64},
    "network": {"encoder": "efficientnet_lite0", "weights": {"source": "package"}},
    "training": {"batch_size": 16, "learning_rate": 0.05, "threads": 1},
    "phantom_images": 80,
    "report": {"draws": 10, "page": False},
}
_OPEN: dict[str, Any] = {"proportion": None}
"""What the rules themselves withstand: by default the longest attacks would be refused before they reach one."""
RULES: Mapping[str, dict[str, Any]] = {
    "uniform": {"rule": "uniform", **_OPEN},
    "UAW": {"rule": "uaw", **_OPEN},
    "norm bound, UAW": {"rule": "uaw", "robust": {"name": "norm_bound"}, **_OPEN},
    "trimmed mean": {"rule": "uniform", "robust": {"name": "trimmed_mean"}, **_OPEN},
    "median": {"rule": "uniform", "robust": {"name": "median"}, **_OPEN},
    "Krum": {"rule": "uniform", "robust": {"name": "krum"}, **_OPEN},
    "3-Krum": {"rule": "uniform", "robust": {"name": "krum", "keep": 3}, **_OPEN},
}
WEIGHED = ("UAW", "norm bound, UAW")
"""Rules that read theta, so that forging it is an attack on them alone."""

Attack = Callable[[Tensors, Tensors, Mapping[str, float], np.random.Generator], tuple[Tensors, Mapping[str, float]]]


def honest(
    sent: Tensors, update: Tensors, scalars: Mapping[str, float], draw: np.random.Generator
) -> tuple[Tensors, Mapping[str, float]]:
    """Send what was trained."""
    return update, scalars


def stretched(factor: float, theta: float | None = None) -> Attack:
    """Send the update `factor` times as long; below 0 it points the other way."""

    def attack(
        sent: Tensors, update: Tensors, scalars: Mapping[str, float], draw: np.random.Generator
    ) -> tuple[Tensors, Mapping[str, float]]:
        made = {key: (sent[key] + factor * (update[key] - sent[key])).to(update[key].dtype) for key in update}
        return made, scalars if theta is None else {**scalars, "theta": theta}

    return attack


def noisy(factor: float) -> Attack:
    """Send Gaussian noise, `factor` times as long as the update was, in its place."""

    def attack(
        sent: Tensors, update: Tensors, scalars: Mapping[str, float], draw: np.random.Generator
    ) -> tuple[Tensors, Mapping[str, float]]:
        length = sum(float((update[key] - sent[key]).double().square().sum()) for key in update) ** 0.5
        scale = factor * length / sum(value.numel() for value in update.values()) ** 0.5
        made = {
            key: sent[key] + scale * torch.from_numpy(draw.standard_normal(tuple(sent[key].shape), np.float32))
            for key in sorted(update)
        }
        return made, scalars

    return attack


ATTACKS: Mapping[str, Attack] = {
    "none": honest,
    "turned, x5": stretched(-5.0),
    "noise, x100": noisy(100.0),
    "stretched, x1000": stretched(1000.0),
    "turned, x5, theta 1": stretched(-5.0, theta=1.0),
}
FORGED = "turned, x5, theta 1"


def main() -> int:
    """Run what is not stored yet, then render."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--budget", type=float, default=1500.0, help="CPU seconds after which no run is begun")
    parser.add_argument("--scratch", type=Path, default=ROOT / "scratch" / "hostile_site")
    parser.add_argument("--render", action="store_true", help="only write the page")
    chosen = parser.parse_args()
    if not chosen.render:
        torch.set_num_threads(1)
        _measure([int(seed) for seed in chosen.seeds.split(",")], chosen.budget, chosen.scratch)
    from benchmarks.hostile_site_page import write_page

    write_page(STORED)
    return 0


def _measure(seeds: list[int], budget: float, done: Path) -> None:
    done.mkdir(parents=True, exist_ok=True)
    if STORED.exists() and not any(done.iterdir()):
        unpack(STORED, done)
    experiment = Experiment.resolve(EXPERIMENT)
    settings = SiteDataSettings(phantom_images=experiment.phantom_images)
    for seed in seeds:
        with tempfile.TemporaryDirectory() as cache:  # of what frozen stages make of the images
            data = {name: load_site_data(name, settings, experiment.images, seed, Path(cache) / name) for name in SITES}
            _seed(seed, budget, data, done)


def _seed(seed: int, budget: float, data: Mapping[str, SiteData], done: Path) -> None:
    for attack in ATTACKS:
        for rule in WEIGHED if attack == FORGED else RULES:
            file = done / f"{seed}-{attack}-{rule}.json"
            if file.exists():
                continue
            if time.process_time() > budget:
                return
            found = one_run(RULES[rule], ATTACKS[attack], seed, data)
            case = {"rule": rule, "attack": attack, "seed": seed, "hostile": HOSTILE, "settings": EXPERIMENT}
            write_json(file, case | found | {"machine": machine()})
            pack(done, STORED)
            print(rule, "|", attack, "|", seed, "|", found["cpu_s"], found["test_auc"] or found["stopped"], flush=True)


def one_run(aggregation: Mapping[str, Any], attack: Attack, seed: int, data: Mapping[str, SiteData]) -> dict[str, Any]:
    """Run five sites, one of them hostile, to the end or to where the run stops."""
    began = time.process_time()
    experiment = Experiment.resolve({**EXPERIMENT, "seed": seed, "aggregation": aggregation})
    stopped = None
    with tempfile.TemporaryDirectory() as folder:
        hosts = {name: Site(experiment, data[name], Path(folder) / name) for name in SITES}
        coordinator = Coordinator(experiment, "r", Path(folder) / "server")
        try:
            while coordinator.done < len(coordinator.plan):
                _step(coordinator, hosts, attack, seed)
        except QuorumError as error:
            stopped = str(error)
        trained = [record for record in coordinator.records if record["task"] == "train"]
        path = Path(folder) / "server" / "results.json"
        results = read_json(path) if path.exists() else None
    found = results["sites"] if results else {}
    return {
        "cpu_s": round(time.process_time() - began, 1),
        "stopped": stopped,
        "test_auc": {site: figures.get("test_auc") for site, figures in sorted(found.items())},
        "images": {
            site: [figures[f"images_{s}"] for s in ("train", "test")] for site, figures in sorted(found.items())
        },
        "weights": [record["weights"] for record in trained],
        "taken": [record.get("robust", {}).get("taken") for record in trained],
    }


def _step(coordinator: Coordinator, hosts: Mapping[str, Site], attack: Attack, seed: int) -> None:
    coordinator.begin(SITES)
    step = coordinator.step
    for name in coordinator.asked:
        sent = coordinator.down(name)
        try:
            answer = hosts[name].handle(coordinator.order(name), sent)
            if name == HOSTILE and step.task == "train":
                tensors, scalars = attack(sent, answer.tensors, answer.scalars, generator(seed, "hostile", step.number))
                answer = Payload(tensors, scalars, answer.stamp)
            coordinator.accept(name, answer)
        except TrainingError as error:
            coordinator.refuse(name, str(error))
        except RefusedError:
            continue  # the coordinator has noted why
    coordinator.close()


if __name__ == "__main__":
    sys.exit(main())
