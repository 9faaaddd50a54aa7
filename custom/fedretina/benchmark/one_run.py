"""One run of a benchmark: a row with a seed, trained in the plain loop, measured, and stored."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from fedretina.benchmark.measure import measured
from fedretina.benchmark.plan import BenchmarkPlan, RowChoice
from fedretina.benchmark.resplit import resplit
from fedretina.data.pooling import pools
from fedretina.data.site_data import SiteData, SiteDataSettings, load_site_data
from fedretina.data.site_file import read_site_file
from fedretina.experiment import Experiment
from fedretina.loop import run_loop
from fedretina.rows import row
from fedretina.storage import read_json, read_tensors, write_json
from fedretina.version import versions


def sites_of(plan: BenchmarkPlan, out: Path, seed: int) -> dict[str, SiteData]:
    """The benchmark's sites as a seed sees them.

    Raises:
        DataError: A site's data cannot be used.
    """
    found = {}
    for site, file in sorted(plan.sites.items()):
        experiment = plan.experiment_of(plan.rows[0], plan.seeds[0], {})
        phantom = SiteDataSettings(phantom_images=experiment.phantom_images or 160)
        settings = phantom if file is None else read_site_file(file, site)
        # Phantoms are drawn from one seed, like the images of a real site, which are the same for every seed.
        data = load_site_data(site, settings, experiment.images, plan.seeds[0], out / "cache" / site)
        found[site] = resplit(data, plan.splits, seed)
    return found


def run_name(experiment: Experiment) -> str:
    """Name of the run's folder: equal settings share it, so a tuning run that won is the seed's run."""
    return f"seed-{experiment.seed}-{experiment.settings_digest()[:10]}"


def train(plan: BenchmarkPlan, choice: RowChoice, seed: int, change: Mapping[str, Any], out: Path) -> Path:
    """Train a row with a seed, or go on with it, or find it done.

    Returns:
        The run's folder.

    Raises:
        FedretinaError: The run cannot go on.
    """
    experiment = plan.experiment_of(choice, seed, change)
    root, run = out / "runs" / choice.name, run_name(experiment)
    if not (root / run / "seconds.json").exists():
        fresh, began = not (root / run).exists(), time.monotonic()
        run_loop(experiment, sites_of(plan, out, seed), root, run)
        # A run that was interrupted has no honest time of its own.
        _forget_rounds(root / run)
        write_json(root / run / "seconds.json", {"seconds": round(time.monotonic() - began, 1) if fresh else None})
    return root / run


def store(plan: BenchmarkPlan, choice: RowChoice, seed: int, change: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Measure a trained run at each of the plan's sites and store what came out.

    Returns:
        The record, as stored in `results/NAME/seed-S.json`.

    Raises:
        FedretinaError: A part of the run is missing or damaged.
    """
    experiment, folder = plan.experiment_of(choice, seed, change), train(plan, choice, seed, change, out)
    sites = sites_of(plan, out, seed)
    results = read_json(folder / "server" / "results.json")
    home = {site: site for site in sites}
    if experiment.pooled:
        home = {site: pool.data.name for pool in pools(sites) for site in pool.members}
    steps = [step for step in results["steps"] if step["task"] == "train"]
    figures = {}
    for site, data in sites.items():
        model = read_tensors(folder / home[site] / "final" / "model.safetensors")[0]
        answers = out / "answers" / choice.name / f"seed-{seed}" / f"{site}.npz"
        own = measured(experiment, model, data, plan.noise, plan.noise_images, answers)
        said = results["sites"][home[site]]
        figures[site] = {
            **own,
            "theta": said["theta"],
            "weight": said["weight"],
            "theta_by_round": [step["scalars"].get(home[site], {}).get("theta") for step in steps],
            "weight_by_round": [step.get("weights", {}).get(home[site]) for step in steps],
        }
    record = {
        "name": choice.name,
        "row": choice.of,
        "title": plan.title(choice),
        "paper": row(choice.of).paper,
        "seed": seed,
        "loop_only": experiment.pooled,
        "seconds": read_json(folder / "seconds.json")["seconds"],
        "bytes_up": sum(sum(step["bytes_up"].values()) for step in results["steps"]),
        "bytes_down": sum(step["bytes_down"] * len(step["bytes_up"]) for step in results["steps"]),
        "rounds": len(steps),
        "chosen": results["chosen"],
        "settings": experiment.agreed(),
        "tuned": dict(change),
        "versions": versions(),
        "machine": machine(),
        "validation": results["validation"],
        "sites": figures,
    }
    write_json(out / "results" / choice.name / f"seed-{seed}.json", record)
    return record


def machine() -> dict[str, Any]:
    """What ran it, in words that name no host."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": cores,
        "processor": platform.machine(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _forget_rounds(folder: Path) -> None:
    """Keep final models, records and reports of a run; its rounds are needed no more."""
    for path in folder.rglob("*.safetensors"):
        if path.parent.name != "final":
            path.unlink()
    shutil.rmtree(folder / "server" / "spool", ignore_errors=True)
