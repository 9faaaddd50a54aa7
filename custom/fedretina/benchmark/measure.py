"""What a benchmark keeps of a trained model at a site: its figures, its answers, and its AUC under noise."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedretina.data.site_data import SiteData, Split
from fedretina.evaluation.metrics import macro_auc
from fedretina.evaluation.referable import referable
from fedretina.exchange.payload import Tensors
from fedretina.experiment import Experiment
from fedretina.local.trainer import LocalTrainer
from fedretina.seeds import derive_seed, generator
from fedretina.storage import write_bytes
from fedretina.uncertainty.estimators import ESTIMATORS, auc_scores

_CHUNK = 256


def measured(
    experiment: Experiment, model: Tensors, data: SiteData, noise: Sequence[float], noise_images: int, answers: Path
) -> dict[str, Any]:
    """Answer a site's test split, store the answers, and sum them up.

    Args:
        experiment: The run's settings.
        model: All tensors of the site's model.
        data: The site.
        noise: Variances of the noise.
        noise_images: At most so many images under noise.
        answers: File of the answers (npz); it tells images apart, so it stays where it is.

    Returns:
        Figures that may be published: no answer to a single image is among them.
    """
    trainer, split = LocalTrainer(experiment, data), data.split("test")
    chosen, tau = experiment.evaluation, experiment.objective.tweu.tau
    found = trainer.answers({}, model, split)
    estimator = ESTIMATORS[chosen.estimator]
    answer = estimator.answer(found.logits)
    figures = trainer.evaluate(found)._asdict()
    disease = referable(answer.probabilities, split.labels.numpy(), data.scheme)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        probabilities=answer.probabilities,
        uncertainty=answer.uncertainty,
        labels=split.labels.numpy(),
        patients=np.array([f"{derive_seed(data.name, who):016x}" for who in split.patients]),
        scores=auc_scores(found.logits, chosen.auc_input, tau, estimator),
        referable=np.array(data.scheme.referable_classes, dtype=np.int64),
        ungradable=-1 if data.scheme.ungradable_class is None else data.scheme.ungradable_class,
    )
    write_bytes(answers, buffer.getvalue())
    few = _first(split, noise_images, data.name)
    by_logits = macro_auc(auc_scores(found.logits, "logits_softmax", tau, estimator), split.labels.numpy())[0]
    test = {name: value for name, value in figures.items() if name not in ("auc_classes", "n")}
    return {
        "grades": data.scheme.num_classes,
        "grade_names": list(data.scheme.grades),
        "images": data.graded,
        "fingerprint": data.fingerprint,
        "synthetic": data.synthetic,
        "test": {**test, "auc_logits": by_logits, "referable_auc": None if disease is None else disease.auc},
        "noise": [
            {
                "variance": variance,
                "auc": trainer.evaluate(trainer.answers({}, model, noised(few, variance, data.name))).auc,
            }
            for variance in noise
        ],
    }


def _first(split: Split, most: int, site: str) -> Split:
    """Some of the images, chosen by a hash of their names."""
    order = sorted(range(len(split.files)), key=lambda at: (derive_seed("noise", site, split.files[at]), at))
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
