"""Images a second that train from real input, against synthetic input that lies on the device already."""

from __future__ import annotations

import time
from statistics import median
from typing import NamedTuple

import torch

from fedretina.corrections.correction import LocalRound
from fedretina.data.site_data import Split
from fedretina.local.supervised import EpochContext, Inputs, labelled_epochs
from fedretina.local.trainer import LocalTrainer
from fedretina.losses.objective import build_objective
from fedretina.seeds import reproducible_torch
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan
from fedretina.settings.training import TrainingSettings

TARGET = 0.9
"""Real input over synthetic input: below it, the card waits for images."""


class Epochs:
    """The local epochs of a row at a site, timed: network, precision, objective, optimiser and batches are the row's.

    Attributes:
        trainer: The site's trainer, with the network in it.
        settings: Of the row's training, with one epoch, and batches no larger than there are images.
        images: Images that an epoch trains on.

    Args:
        trainer: The site's.
        experiment: The run's settings, of the trainer too.
        split: The images.
    """

    def __init__(self, trainer: LocalTrainer, experiment: Experiment, split: Split) -> None:
        self._step = next(one for one in Plan.of(experiment) if one.task == "train")
        phase = experiment.phase(self._step.phase)
        training = phase.training or experiment.training
        one = {"epochs": 1, "stretches": (), "batch_size": min(training.batch_size, len(split.labels))}
        self.trainer = trainer
        self.settings: TrainingSettings = training.model_copy(update=one)
        # The last batch is whole, or left out.
        self.images = len(split.labels) - len(split.labels) % self.settings.batch_size
        self._seed, self._split = experiment.seed, split
        self._objective = build_objective(experiment.objective)
        self.real = trainer.inputs(split, phase.augment or experiment.augment)

    @property
    def synthetic(self) -> Inputs:
        """One batch of drawn pixels, in the network's own layout, on its device."""
        ready = self.trainer.model.to_device(torch.rand(self.settings.batch_size, *self._split.images.shape[1:]))
        return lambda order, purpose: iter([ready] * len(order))

    def train(self, inputs: Inputs, turn: int) -> float:
        """Run one epoch, whose draws are of its turn; the network goes on from where it stands.

        Returns:
            Seconds, to the moment when what was computed has come to the CPU.
        """
        context = EpochContext(self._step, self.settings, inputs, (self._seed, "speed", turn))
        with reproducible_torch(self.settings):
            began = time.perf_counter()
            # Its answers end on the CPU.
            labelled_epochs(self.trainer.model, self._objective, self._split, LocalRound(), context, lambda: False)
            return time.perf_counter() - began


class InputSpeed(NamedTuple):
    """Images a second, by turn.

    Attributes:
        real: From the image cache, brought to the device as bytes and transformed there.
        synthetic: From one batch that lies there.
    """

    real: list[float]
    synthetic: list[float]

    @property
    def ratio(self) -> float:
        """Real over synthetic, the median of the turns."""
        return median(real / drawn for real, drawn in zip(self.real, self.synthetic, strict=True))


def input_speed(epochs: Epochs, turns: int) -> InputSpeed:
    """Time both kinds of input in turn, after one epoch of each that warms up.

    Args:
        epochs: What is timed.
        turns: How often each is.
    """
    kinds, found = (epochs.real, epochs.synthetic), InputSpeed([], [])
    for turn in range(1 + turns):
        for inputs, speeds in zip(kinds, found, strict=True):
            speed = epochs.images / epochs.train(inputs, turn)
            if turn:
                speeds.append(speed)
    return found


def first(split: Split, most: int) -> Split:
    """The first images of a split, which lie side by side in the cache as all of them do."""
    return Split(split.images[:most], split.labels[:most], split.patients[:most], split.files[:most])
