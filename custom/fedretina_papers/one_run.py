"""One run of a benchmark: a row with a seed, trained in the plain loop, measured, and stored."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from fedretina.data.site_data import SiteData, load_site_data, pools
from fedretina.exchange.moved import run_moved
from fedretina.loop import run_loop
from fedretina.rows import row
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import SiteDataSettings, read_data_settings
from fedretina.storage import read_json, read_tensors, write_json
from fedretina.version import versions
from fedretina_papers.asked import ask, keep
from fedretina_papers.choices import RowChoice, passes
from fedretina_papers.fine_tuned import begins_with, tune_on
from fedretina_papers.measure import measured, reading_of, site_facts, under_noise
from fedretina_papers.one_place_run import train_in_one_place
from fedretina_papers.outside_images import outside_of, outside_sets
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.resplit import resplit
from fedretina_papers.run_course import moved_by_phase, rounds_of_sites
from fedretina_papers.stored import answers_path


def sites_of(
    plan: BenchmarkPlan,
    out: Path,
    seed: int,
    names: Collection[str] | None = None,
    read: Callable[[str, int, int], None] = lambda what, done, of: None,
    cache: Path | None = None,
) -> dict[str, SiteData]:
    """The benchmark's sites as a seed sees them.

    Args:
        plan: The plan.
        out: Folder of the benchmark.
        seed: The seed.
        names: Which sites; those of the plan by default.
        read: Called after each image that goes into a cache: whose it is, how many there are, and of how many.
        cache: Folder of the image caches; `cache` in the benchmark's by default.

    Raises:
        DataError: A site's data cannot be used.
    """
    files = {**plan.spare_sites, **plan.sites}
    experiment = plan.experiment_of(plan.rows[0], plan.seeds_of(plan.rows[0])[0], {})
    found = {}
    for site in sorted(plan.sites if names is None else names):
        phantom = SiteDataSettings(phantom_images=experiment.phantom_images or 160)
        file = files[site]
        settings = phantom if file is None else read_data_settings(file, site)
        # Phantoms are drawn from one seed, like the images of a real site, which are the same for every seed.
        tell = partial(read, f"images of {site}")
        place = (cache or out / "cache") / site
        data = load_site_data(site, settings, experiment.images, plan.seeds[0], place, tell=tell)
        found[site] = resplit(data, plan.splits, plan.tuning_seed if plan.splits.kind == "once" else seed)
    return found


def run_name(experiment: Experiment) -> str:
    """Name of the run's folder: equal settings share it, so a tuning run that won is the seed's run."""
    return f"seed-{experiment.seed}-{experiment.settings_digest()[:10]}"


def train(plan: BenchmarkPlan, choice: RowChoice, seed: int, change: Mapping[str, Any], out: Path) -> Path:
    """Train a row with a seed, or go on with it, or find it done.

    A row that only fine-tunes what another row of the plan ends with begins with that row's run.

    Returns:
        The run's folder.

    Raises:
        FedretinaError: The run cannot go on.
    """
    experiment = plan.experiment_of(choice, seed, change)
    root, run = out / "runs" / choice.name, run_name(experiment)
    if (root / run / "seconds.json").exists():
        return root / run
    sites, start = sites_of(plan, out, seed, plan.trained_on(choice)), begins_with(plan, choice)
    if start is not None:
        tune_on(experiment, sites, train(plan, start, seed, change, out), root / run)
    elif choice.in_one_place:
        train_in_one_place(experiment, sites, root / run)
    else:
        fresh, began = not (root / run).exists(), time.monotonic()
        run_loop(experiment, sites, root, run)
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
    folder = train(plan, choice, seed, change, out)
    trained = sites_of(plan, out, seed, plan.trained_on(choice))
    record = measure_run(plan, choice, seed, change, out, folder, trained, {**sites_of(plan, out, seed), **trained})
    write_json(out / "results" / choice.name / f"seed-{seed}.json", record)
    return record


def measure_run(
    plan: BenchmarkPlan,
    choice: RowChoice,
    seed: int,
    change: Mapping[str, Any],
    out: Path,
    folder: Path,
    trained: Mapping[str, SiteData],
    sites: Mapping[str, SiteData],
) -> dict[str, Any]:
    """Let the models of a trained run answer at each site, keep the answers, and give the run's record.

    Args:
        plan: The plan.
        choice: The row.
        seed: The seed.
        change: What was chosen of its grid.
        out: Folder of the benchmark, which gets the answers.
        folder: The run's folder, with `seconds.json`.
        trained: The sites that trained.
        sites: All sites of the plan, as the seed sees them.

    Raises:
        FedretinaError: A part of the run is missing or damaged.
    """
    experiment = plan.experiment_of(choice, seed, change)
    results = read_json(folder / "server" / "results.json")
    home = homes(experiment, trained, sites)
    steps = [step for step in results["steps"] if step["task"] == "train"]
    moved = run_moved(results)
    outside, read = outside_sets(plan, out), reading_of(experiment)
    figures = {}
    for site, host in home.items():
        model = read_tensors(folder / host / "final" / "model.safetensors")[0]
        asked = ask(experiment, model, sites[site], outside_of(site, sites, outside, plan.others))
        keep(asked, read, answers_path(out, choice.name, seed, site))
        said = results["sites"][host] if site in trained else {"theta": None, "weight": None}
        figures[site] = {
            **site_facts(sites[site]),
            **measured(asked, read),
            "noise": under_noise(experiment, model, sites[site], plan.noise, plan.noise_images),
            "trained": site in trained,
            "theta": said["theta"],
            "weight": said["weight"],
            "theta_by_round": [step["scalars"].get(host, {}).get("theta") for step in steps],
            "weight_by_round": [step.get("weights", {}).get(host) for step in steps],
            # A row that only sums has no step that trains.
            "labelled": steps[0]["scalars"].get(host, {}).get("images") if steps and site in trained else None,
        }
    return {
        "name": choice.name,
        "row": choice.of,
        "title": plan.title(choice),
        "paper": row(choice.of).paper,
        "seed": seed,
        "loop_only": experiment.pooled or choice.in_one_place,
        "seconds": read_json(folder / "seconds.json")["seconds"],
        "bytes_up": moved.up,
        "bytes_down": moved.down,
        "moved": moved_by_phase(results),
        "history": rounds_of_sites(folder, sorted(set(home.values()))),
        "classes": None if experiment.classes is None else list(experiment.classes),
        "rounds": len(steps),
        "passes": passes(experiment),
        "chosen": results["chosen"],
        "settings": experiment.agreed(),
        "tuned": dict(change),
        "versions": versions(),
        "machine": machine(),
        "validation": results["validation"],
        "sites": figures,
    }


def homes(experiment: Experiment, trained: Mapping[str, SiteData], sites: Mapping[str, SiteData]) -> dict[str, str]:
    """Whose model answers at each site, by the name of its folder.

    A site that trained has its own, or its pool's. One that did not is answered by the model that all trained sites
    share, where one has it, or by the pool of its own grades; else it is left out.

    Args:
        experiment: The run's settings.
        trained: The sites that trained.
        sites: All sites.
    """
    exchange = experiment.exchange
    found = {site: site for site in trained}
    by_grades: dict[tuple[str, ...], str] = {}
    for pool in pools(trained, by_grades=True) if experiment.pooled else ():
        found |= dict.fromkeys(pool.members, pool.data.name)
        by_grades[pool.data.scheme.grades] = pool.data.name
    whole = exchange.personal == "nothing" and exchange.batchnorm in ("shared_all", "none")
    for site in sorted(set(sites) - set(trained)):
        host = min(trained) if whole else by_grades.get(sites[site].scheme.grades)
        if host is not None:
            found[site] = host
    return {site: found[site] for site in sorted(found)}


def machine() -> dict[str, Any]:
    """What ran it, in words that name no host."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": cores,
        "processor": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # they decide a large batch's last bits
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _forget_rounds(folder: Path) -> None:
    """Keep final models, records and reports of a run; its rounds are needed no more."""
    for path in folder.rglob("*.safetensors"):
        if path.parent.name != "final":
            path.unlink()
    shutil.rmtree(folder / "server" / "spool", ignore_errors=True)
