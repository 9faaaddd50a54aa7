"""Answers made of others: the mean of several models, and what one temperature or even grades make of a model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from fedretina.data.site_data import SiteData
from fedretina.settings.experiment import Experiment
from fedretina.uncertainty.temperature import BOUNDS, fit_temperature, tempered
from fedretina_papers.blocks.figures import Said, read


def joined(
    parts: Sequence[Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]],
    labels: Mapping[str, NDArray[np.int64]],
) -> dict[str, Said]:
    """The mean of the logarithms of several models' answers, each at one temperature for all hospitals.

    Heads over the same classes so make one linear head. The temperature has the smallest mean log loss over all
    hospitals' validation images, each counting alike; a hospital's loss at a temperature is a number, so that a
    federation can find it without any answer leaving a hospital. Doubt is 1 - the largest probability.

    Args:
        parts: Of each model, by hospital, its probabilities of validation and test images, both [N, K].
        labels: Of the validation images, by hospital.
    """
    found = {}
    values = [shared_temperature([(said[name][0], labels[name]) for name in labels]) for said in parts]
    for name in labels:
        logs = [_logs(tempered(said[name][1], value)) for said, value in zip(parts, values, strict=True)]
        odds = softmax(np.mean(logs, axis=0), axis=1)
        found[name] = Said(odds, 1 - odds.max(1), odds)
    return found


def shared_temperature(answers: Sequence[tuple[NDArray[np.float64], NDArray[np.int64]]]) -> float:
    """The temperature of the smallest mean log loss over several hospitals' images, each image counting alike.

    Args:
        answers: Of each hospital its probabilities [N, K] and labels [N]; K may differ among them.

    Returns:
        Within `BOUNDS` of `uncertainty.temperature`.
    """
    known = [(_logs(odds), labels) for odds, labels in answers if len(labels)]

    def loss(log_temperature: float) -> float:
        scale = float(np.exp(-log_temperature))
        return float(-sum(log_softmax(one * scale, axis=1)[range(len(y)), y].sum() for one, y in known))

    low, high = np.log(BOUNDS)
    return float(np.exp(minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-4}).x))


def at_own_temperature(experiment: Experiment, said: Said, validation: Said, data: SiteData) -> Said:
    """A hospital's answers at the one temperature that fits its validation images; u is the row's own, read off those.

    Args:
        experiment: The row's settings, by which answers are read.
        said: Of the test images.
        validation: Of the validation images.
        data: The hospital's.
    """
    labels = data.split("val").labels.numpy()
    value = fit_temperature(validation.probabilities, labels).value
    odds = tempered(said.probabilities, value)
    return read(experiment, torch.from_numpy(_logs(odds)))


def at_even_grades(experiment: Experiment, said: Said, data: SiteData) -> Said:
    """A hospital's answers as if all grades were equally common at it.

    Logit adjustment after training, tau 1 (Menon et al., "Long-tail learning via logit adjustment", ICLR 2021): each
    probability is divided by how common its grade is among the hospital's training images, each grade counted once more
    than it is there, so that a grade without images has a share.

    Args:
        experiment: The row's settings, by which answers are read.
        said: Of the test images.
        data: The hospital's.
    """
    counts = np.bincount(data.split("train").labels.numpy(), minlength=data.scheme.num_classes) + 1
    return read(experiment, torch.from_numpy(_logs(said.probabilities) - np.log(counts / counts.sum())))


def _logs(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    logs: NDArray[np.float64] = np.log(np.clip(odds, np.finfo(np.float64).tiny, None))
    return logs
