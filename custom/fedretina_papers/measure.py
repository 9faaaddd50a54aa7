"""What a benchmark publishes of a model's answers at a site: figures, and its AUC under noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fedretina.data.site_data import SiteData, Split
from fedretina.evaluation.figures import evaluate
from fedretina.evaluation.metrics import auroc, macro_auc
from fedretina.exchange.payload import Tensors
from fedretina.local.trainer import LocalTrainer
from fedretina.seeds import derive_seed, generator
from fedretina.settings.experiment import Experiment
from fedretina.uncertainty.estimators import build_estimator
from fedretina_papers.asked import Asked, Read
from fedretina_papers.statistics.out_of_distribution import out_of_distribution
from fedretina_papers.stored import referral

_CHUNK = 256


def reading_of(experiment: Experiment) -> Read:
    """How a run's own settings read its logits."""
    chosen = experiment.evaluation
    return Read(chosen.estimator, chosen.auc_input, experiment.tau)


def site_facts(data: SiteData) -> dict[str, Any]:
    """What a record says of a site, whoever answers."""
    return {
        "grades": data.scheme.num_classes,
        "grade_names": list(data.scheme.grades),
        "images": data.graded,
        "fingerprint": data.fingerprint,
        "synthetic": data.synthetic,
    }


def measured(asked: Asked, read: Read) -> dict[str, Any]:
    """Sum up what a model said about a site's images.

    Args:
        asked: Logits and truth.
        read: How the logits are read.

    Returns:
        "test" figures, and where images from outside were asked about, how well u tells them from the site's own test
        images: "strangers" by set and disease, "others" by site. No answer to a single image is among them.
    """
    figures = evaluate(asked.logits, asked.labels, build_estimator(read.estimator), read.auc_input, read.tau)._asdict()
    answer = read.predict(asked.logits)
    disease = referral(answer.probabilities, asked.labels, asked.referable, asked.ungradable)
    by_logits = macro_auc(read._replace(auc_input="logits_softmax").scores(asked.logits), asked.labels)[0]
    test = {name: value for name, value in figures.items() if name not in ("auc_classes", "n")}
    found: dict[str, Any] = {
        "test": {
            **test,
            "auc_logits": by_logits,
            "referable_auc": None if disease is None else auroc(disease.score, disease.diseased),
        }
    }
    outside, others = {}, {}
    for name, one in asked.outside.items():
        u = read.predict(one.logits).uncertainty
        told = out_of_distribution(answer.uncertainty, u)._asdict() | {"synthetic": one.synthetic}
        if one.other_site:
            others[name] = told
            continue
        outside[name] = told | {
            "diseases": {
                disease: out_of_distribution(answer.uncertainty, u[one.labels == at])._asdict()
                for at, disease in enumerate(one.diseases)
                if np.any(one.labels == at)
            },
        }
    if outside:
        found["strangers"] = outside
    if others:
        found["others"] = others
    return found


def under_noise(
    experiment: Experiment, model: Tensors, data: SiteData, noise: Sequence[float], noise_images: int
) -> list[dict[str, Any]]:
    """Macro AUC of a site's model on test images with growing noise.

    Args:
        experiment: The run's settings.
        model: All tensors of the site's model.
        data: The site.
        noise: Variances of the noise; none for nothing.
        noise_images: At most so many images.
    """
    if not noise:
        return []
    trainer, few = LocalTrainer(experiment, data), first_images(data.split("test"), noise_images, "noise", data.name)
    return [
        {
            "variance": variance,
            "auc": trainer.evaluate(trainer.answers({}, model, noised(few, variance, data.name))).auc,
        }
        for variance in noise
    ]


def first_images(split: Split, most: int, purpose: str, site: str) -> Split:
    """Some of the images, chosen by a hash of their names."""
    order = sorted(range(len(split.files)), key=lambda at: (derive_seed(purpose, site, split.files[at]), at))
    at = sorted(order[:most])
    return Split(
        split.images[at], split.labels[at], tuple(split.patients[i] for i in at), tuple(split.files[i] for i in at)
    )


def noised(split: Split, variance: float, site: str) -> Split:
    """The split with Gaussian noise on each pixel of [0, 1], the same for every row and seed of training.

    Values beyond [0, 1] are cut, as a camera's would be (FedUAA, Figure 2c; the paper does not say how it cuts).

    Args:
        split: The images.
        variance: sigma^2, 0 or more; at 0 the images are as they were.
        site: Part of the seed.
    """
    if variance == 0:
        return split
    rng = generator("noise", site, repr(variance))

    def parts() -> Iterator[torch.Tensor]:
        for images in torch.split(split.images, _CHUNK):
            drawn = torch.from_numpy(rng.standard_normal(tuple(images.shape), dtype=np.float32))
            yield (images.float().div_(255) + drawn * variance**0.5).clamp_(0, 1).mul_(255).round_().to(torch.uint8)

    return split._replace(images=torch.cat(list(parts())))
