"""Pre-training without labels joined to heads from sums: encoders as the sites left them, then heads at each budget.

Two stages in one folder. Each call gives every encoder some minutes more of pre-training; then heads are fitted on the
encoders as they stand, over draws of the labelled images, with the classes that the product's own runs use. What was
fitted on an encoder that has been trained further since is fitted anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedretina.analytic.features import LinearHead
from fedretina.analytic.sums import total
from fedretina.data.site_data import SiteData, Split, load_site_data
from fedretina.evaluation.metrics import quadratic_kappa
from fedretina.evaluation.referable import referable
from fedretina.local.features import FrozenEncoder
from fedretina.local.heads_from_sums import ANSWERS, HeadsFromSums, packed
from fedretina.settings.experiment import Experiment
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteDataSettings, read_data_settings
from fedretina.storage import folder_lock, read_json, write_json
from fedretina.version import versions
from fedretina_papers.draws import drawn
from fedretina_papers.first_phase_plan import EncoderChoice, FirstPhasePlan
from fedretina_papers.one_run import machine
from fedretina_papers.pretraining import Pretrained, pretrained
from fedretina_papers.runner import FIXED, Told, settings_alike
from fedretina_papers.statistics.classification import classification

STUDY = "study.json"
MAJORITY = "majority"
LEAST = 5
"""Test images of a grade at a site: with fewer it is left out of means over grades, where it would count as much as one
with a hundred."""
_MAY_GROW = {"encoders", "budgets", "draws", "minutes", "sites"}


def run_first_phase(
    plan: FirstPhasePlan,
    out: Path,
    tell: Callable[[Told], None],
    read: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> dict[str, str]:
    """Pre-train every encoder a while longer, then fit heads on all of them and store what they answer.

    Args:
        plan: The plan; a folder that holds another plan's results is refused.
        out: Folder of the study.
        tell: Called after each round and each draw.
        read: Called while the sites' images are read: as `sites_of`.

    Returns:
        Nothing is ever missing: what fails ends the call, and the next one goes on there.

    Raises:
        SettingsError: The folder belongs to another plan.
        StateError: The folder is in use, or cannot be written.
        DataError: A site's data cannot be used.
        TrainingError: A pre-training or a fit cannot go on.
    """
    with folder_lock(out, 0):
        fixed = plan.model_dump(mode="json", exclude=_MAY_GROW) | {"sites": sorted(plan.sites)}
        fixed = settings_alike(fixed, out)
        labelled = _sites(plan, plan.heads({}), out, read)
        write_json(out / FIXED, fixed)
        told = plan.model_dump(mode="json", exclude={"sites"})
        facts = {name: _facts(plan, data) for name, data in labelled.items()}
        write_json(out / STUDY, {**told, "sites": facts, "versions": versions(), "machine": machine()})
        blind: dict[str, SiteData] = {}
        for encoder in plan.pretrained:
            experiment = plan.pretraining(encoder)
            blind = blind or _sites(plan, experiment, out, read)
            say = partial(_say, tell, plan, encoder)
            write_json(
                out / "encoders" / f"{encoder.name}.json",
                pretrained(experiment, blind, out / "pretraining" / encoder.name, plan.minutes, say)._asdict(),
            )
        fits = [(draw, budget, one) for draw in range(plan.draws) for budget in plan.budgets for one in plan.encoders]
        for at, (draw, budget, encoder) in enumerate(fits, start=1):
            words = _fitted(plan, encoder, budget, draw, labelled, out)
            tell(Told(at, len(fits), words, None))
    return {}


def _say(tell: Callable[[Told], None], plan: FirstPhasePlan, encoder: EncoderChoice, words: str) -> None:
    tell(Told(plan.pretrained.index(encoder) + 1, len(plan.pretrained), f"{encoder.name}: {words}", None))


def _sites(
    plan: FirstPhasePlan, experiment: Experiment, out: Path, read: Callable[[str, int, int], None]
) -> dict[str, SiteData]:
    found = {}
    for site, file in sorted(plan.sites.items()):
        phantom = SiteDataSettings(phantom_images=experiment.phantom_images or 160)
        settings = phantom if file is None else read_data_settings(file, site)
        tell, cache = partial(read, f"images of {site}"), out / "cache" / site
        found[site] = load_site_data(site, settings, experiment.images, plan.seed, cache, tell=tell)
    return found


def _facts(plan: FirstPhasePlan, data: SiteData) -> dict[str, Any]:
    """A site in the words of the page: counts alone."""
    test = drawn(data, plan.budgets[0], 0, plan.limit).split("test")
    return {
        "pretrain": data.counts["pretrain"],
        "train": data.counts["train"],
        "test": len(test.labels),
        "test_patients": len(set(test.patients)),
        "test_by_grade": torch.bincount(test.labels, minlength=data.scheme.num_classes).tolist(),
        "grades": list(data.scheme.grades),
        "synthetic": data.synthetic,
    }


def _fitted(
    plan: FirstPhasePlan,
    encoder: EncoderChoice,
    budget: int,
    draw: int,
    labelled: Mapping[str, SiteData],
    out: Path,
) -> str:
    """Fit and store the heads of one draw on one encoder, unless they are stored; in words what came of it."""
    file = out / "results" / encoder.name / f"budget-{budget}-draw-{draw}.json"
    words = f"{encoder.name}, {budget} images a site, draw {draw}"
    done: Pretrained | None = None
    if encoder.who != "nobody":
        done = Pretrained(**read_json(out / "encoders" / f"{encoder.name}.json"))
    weights = {
        site: {}
        if done is None
        else {**done.files[site], "file": str(_folder(out, encoder) / done.files[site]["file"])}
        for site in labelled
    }
    digests = {site: one.get("sha256", "start") for site, one in weights.items()}
    if file.exists() and _stands(read_json(file), digests):
        return f"{words}: as stored"
    sites = {site: drawn(data, budget, draw, plan.limit) for site, data in labelled.items()}
    experiments = {site: plan.heads(one) for site, one in weights.items()}
    rows = _rows(encoder, experiments, sites)
    record = {
        "encoders": digests,
        "least": LEAST,
        "passes": 0 if done is None else done.passes,
        "bytes": {"up": 0, "down": 0} if done is None or encoder.who != "sites" else dict(done.bytes),
        **rows,
    }
    write_json(file, record)
    return words


def _stands(record: Mapping[str, Any], digests: Mapping[str, str]) -> bool:
    """Whether a stored record is of these encoders, and of figures as they are worked out now."""
    return bool(record["encoders"] == digests and record.get("least") == LEAST)


def _folder(out: Path, encoder: EncoderChoice) -> Path:
    return out / "pretraining" / encoder.name


def _rows(
    encoder: EncoderChoice, experiments: Mapping[str, Experiment], sites: Mapping[str, SiteData]
) -> dict[str, Any]:
    """Figures of every head on an encoder, by site; sums are joined only where all sites have the same encoder."""
    parts = {site: HeadsFromSums(experiments[site], data) for site, data in sites.items()}
    summed = {site: part.sums() for site, part in parts.items()}
    together = encoder.who != "alone"
    whole = total((site, sums) for site, (sums, _) in summed.items()) if together else None
    rows: dict[str, dict[str, Any]] = {}
    for site, data in sites.items():
        mine, kept = summed[site]
        heads = parts[site].heads(mine if whole is None else whole, kept)
        test = data.split("test")
        features = FrozenEncoder(experiments[site], data).features(test)
        for answer in ANSWERS if together else ANSWERS[:1]:
            found = _figures(_answers(heads[answer], features), test, data.scheme)
            rows.setdefault(answer, {})[site] = {"test": found, "images": dict(data.counts)}
        if encoder.who == "nobody":
            commonest = torch.bincount(data.split("train").labels, minlength=data.scheme.num_classes).double()
            guess = (
                torch.nn.functional.one_hot(commonest.argmax(), len(commonest)).double().expand(len(test.labels), -1)
            )
            found = _figures(guess, test, data.scheme)
            rows.setdefault(MAJORITY, {})[site] = {"test": found, "images": dict(data.counts)}
    message = sum(tensor.numel() * tensor.element_size() for tensor in packed(summed[min(summed)][0]).values())
    return {"rows": rows, "sums_bytes": message if together else 0}


def _answers(head: LinearHead, features: Tensor) -> Tensor:
    return (features.double() @ head.weight.double().T + head.bias.double()).softmax(1)


def _figures(probabilities: Tensor, test: Split, scheme: GradingScheme) -> dict[str, float | None]:
    matrix, labels = probabilities.numpy(), np.asarray(test.labels.numpy())
    found, asked = classification(matrix, labels), referable(matrix, labels, scheme)
    enough = [one for one in found.classes if one.support >= LEAST]
    ranks = [one.auc for one in enough if one.auc is not None]
    recalls = [one.recall for one in enough if one.recall is not None]
    return {
        "auc": fmean(ranks) if ranks else None,
        "referable_auc": None if asked is None else asked.auc,
        "kappa": quadratic_kappa(matrix.argmax(1), labels),
        "accuracy": found.accuracy,
        "balanced_accuracy": fmean(recalls) if recalls else None,
    }
