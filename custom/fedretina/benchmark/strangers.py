"""Images of diseases that no site grades: does a trained model's uncertainty tell them from a site's own?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedretina.benchmark.plan import BenchmarkPlan
from fedretina.data.manifest import PRETRAIN, SPLITS, UNLABELLED
from fedretina.data.site_data import SiteData, Split, load_site_data
from fedretina.data.site_file import read_site_file
from fedretina.errors import DataError
from fedretina.evaluation.out_of_distribution import out_of_distribution
from fedretina.exchange.payload import Tensors
from fedretina.experiment import Experiment
from fedretina.local.trainer import LocalTrainer
from fedretina.uncertainty.estimators import ESTIMATORS


class Strangers(NamedTuple):
    """A set of images from outside.

    Attributes:
        split: The images; their labels are classes of `diseases`, or -1 where none is told.
        diseases: Names of their own classes; none where they have no grading scheme.
        synthetic: Whether there are phantoms among them.
    """

    split: Split
    diseases: tuple[str, ...]
    synthetic: bool


def strangers_of(plan: BenchmarkPlan, out: Path) -> dict[str, Strangers]:
    """Read the plan's sets of strangers; all their splits count, for nothing was trained on them.

    Raises:
        DataError: A set cannot be read, or holds no image.
    """
    images = plan.experiment_of(plan.rows[0], plan.seeds_of(plan.rows[0])[0], {}).images
    found = {}
    for name, file in sorted(plan.strangers.items()):
        settings = read_site_file(file, name)
        data = load_site_data(name, settings, images, plan.seeds[0], out / "cache" / f"strangers-{name}", False)
        parts = [data.split(one) for one in SPLITS if data.counts[one]]
        known = {name for part in parts for name in part.files}
        loose = data.split(PRETRAIN)
        alone = [at for at, name in enumerate(loose.files) if name not in known]
        if alone:
            patients, files = (tuple(names[at] for at in alone) for names in (loose.patients, loose.files))
            parts.append(Split(loose.images[alone], torch.full((len(alone),), UNLABELLED), patients, files))
        if not parts:
            raise DataError(f"the set of strangers {name} holds no image: list some in its manifest.")
        whole = Split(
            torch.cat([part.images for part in parts]),
            torch.cat([part.labels for part in parts]),
            tuple(who for part in parts for who in part.patients),
            tuple(one for part in parts for one in part.files),
        )
        found[name] = Strangers(whole, () if data.grading is None else data.grading.grades, data.synthetic)
    return found


def unlike_own(
    experiment: Experiment, model: Tensors, data: SiteData, strangers: Mapping[str, Strangers], answers: Path
) -> dict[str, Any]:
    """How well a site's model tells each set of strangers from the site's own test images, by its uncertainty.

    Args:
        experiment: The run's settings.
        model: All tensors of the site's model.
        data: The site.
        strangers: Sets from outside.
        answers: The site's stored answers to its own test split (npz), which hold their uncertainty.

    Returns:
        Figures by set, over all its images and by disease; none tells of a single image.
    """
    trainer, estimator = LocalTrainer(experiment, data), ESTIMATORS[experiment.evaluation.estimator]
    with np.load(answers, allow_pickle=False) as stored:
        inside = stored["uncertainty"].astype(np.float64)
    found = {}
    for name, one in strangers.items():
        u = estimator.answer(trainer.answers({}, model, one.split).logits).uncertainty
        labels = one.split.labels.numpy()
        found[name] = {
            **out_of_distribution(inside, u)._asdict(),
            "synthetic": one.synthetic,
            "diseases": {
                disease: out_of_distribution(inside, u[labels == at])._asdict()
                for at, disease in enumerate(one.diseases)
                if np.any(labels == at)
            },
        }
    return found
