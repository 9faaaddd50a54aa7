"""How fast a part's reference trains: measured once for each card, and stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median

from fedretina.data.site_data import SiteData
from fedretina.local.trainer import LocalTrainer
from fedretina.settings.plan import Plan
from fedretina.storage import write_json
from fedretina.version import versions
from fedretina_papers.input_speed import Epochs, first, input_speed
from fedretina_papers.one_run import machine
from fedretina_papers.paper_size.plan import PaperSizePlan

SPEED = "speed.json"


def measure_speed(plan: PaperSizePlan, name: str, sites: Mapping[str, SiteData], out: Path) -> str:
    """Time the local epochs of a part's reference, with both kinds of input in turn, and store the figures.

    The images are of the site that trains on most.

    Args:
        plan: The plan.
        name: Of the part.
        sites: Its sites.
        out: Folder of the benchmark; the part's folder gets `speed.json`.

    Returns:
        What came out, in words.
    """
    bench = plan.benches[name]
    experiment = bench.experiment_of(bench.choice(bench.reference), plan.seeds[0], {})
    data = max(sites.values(), key=lambda one: (one.counts["train"], one.name))
    step = next(one for one in Plan.of(experiment) if one.task == "train")
    training = experiment.phase(step.phase).training or experiment.training
    split = first(data.split("train"), plan.speed.steps * training.batch_size)
    epochs = Epochs(LocalTrainer(experiment, data), experiment, split)
    found = input_speed(epochs, plan.speed.turns)
    record = {
        **found._asdict(),
        "ratio": found.ratio,
        "encoder": experiment.network.encoder,
        "image_size": split.images.shape[-1],
        "batch_size": epochs.settings.batch_size,
        "precision": epochs.settings.precision,
        "images": epochs.images,
        "site": data.name,
        "synthetic_site": data.synthetic,
        "machine": machine(),
        "versions": versions(),
    }
    write_json(out / name / SPEED, record)
    return (
        f"{name}: {median(found.real):.0f} images/s of real input, {median(found.synthetic):.0f} of synthetic, "
        f"ratio {found.ratio:.2f}"
    )
