"""One round of label-free training at one site: two views of each image, a contrastive objective, no label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.contrastive.objective import ContrastiveContext, Views, begin_contrastive
from fedretina.corrections.correction import build_correction
from fedretina.data.augment import one_view, two_views
from fedretina.data.modalities import modality_named
from fedretina.data.site_data import SiteData
from fedretina.errors import SettingsError, StoppedError
from fedretina.exchange.payload import Tensors
from fedretina.local.model import LocalModel, to_cpu
from fedretina.local.site_state import Snapshot
from fedretina.local.supervised import (
    OPTIMISER,
    BatchLosses,
    RoundOptimiser,
    batches,
    correction_scope,
    require_a_batch,
)
from fedretina.losses.objective import Clock
from fedretina.seeds import reproducible_torch
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Step

_OWN = "contrastive:"
_TRAINS = frozenset({"encoder", "contrast"})


class Pretrained(NamedTuple):
    """What a round of label-free training gives.

    Attributes:
        tensors: Encoder and contrast layers after training, by key, what the correction sends beside them, and the key
            network where it travels.
        images: Images of the site that took part, labelled or not.
        patients: Patients of these images.
        loss: Mean contrastive loss over the round, in nats.
        snapshot: The personal part, and the memories of correction, optimiser and objective (key encoder, queue).
        ways: See `Outcome.ways`.
    """

    tensors: Tensors
    images: int
    patients: int
    loss: float
    snapshot: Snapshot
    ways: Mapping[str, float] = MappingProxyType({})


class Pretrainer:
    """Pre-trains the row's encoder on one site's images, labelled or not.

    Args:
        experiment: The run's settings.
        data: The site's data.
        model: The site's network.
    """

    def __init__(self, experiment: Experiment, data: SiteData, model: LocalModel) -> None:
        self._experiment = experiment
        self._data = data
        self._model = model

    def run(
        self,
        received: Tensors,
        start: Snapshot,
        step: Step,
        stop: Callable[[], bool] = lambda: False,
        share: float = 1.0,
    ) -> Pretrained:
        """Run the local epochs of one round.

        Args:
            received: Encoder and contrast layers that the server sent, with the correction's controls.
            start: The site's state after its last accepted round.
            step: Which round of which phase.
            stop: Asked before each batch; True ends the round.
            share: The site's images over the mean of all sites.

        Raises:
            SettingsError: The step's phase has labels.
            StoppedError: `stop` said so; nothing is kept.
            TrainingError: Fewer images than a batch, or a loss that is not finite; nothing is kept then.
        """
        phase, model = self._experiment.phase(step.phase), self._model
        settings = phase.training or self._experiment.training
        if phase.contrastive is None:
            raise SettingsError(f"phase {phase.name!r} trains with labels: set its contrastive objective.")
        split = self._data.split("pretrain")
        require_a_batch(len(split.images), settings, "images to pre-train on")
        grey = modality_named(self._experiment.images.modality).look.grey
        purpose = (self._experiment.seed, self._data.name, step.phase, step.round)
        ordered = {name: at for at, name in enumerate(sorted(set(split.patients)))}
        patients = torch.tensor([ordered[name] for name in split.patients], dtype=torch.int64)

        def first_views(samples: NDArray[np.int64]) -> torch.Tensor:
            seed = (*purpose, "refill")
            pixels = model.brought(split.images[samples])
            return model.to_device(one_view(pixels, samples, phase.views, seed, view=0, grey=grey))

        # What the site kept is of three owners: the objective (key network, queue), the optimiser, which takes its own,
        # and the correction (variates, drifts).
        mine = {name.removeprefix(_OWN): value for name, value in start.memory.items() if name.startswith(_OWN)}
        others = {name: value for name, value in start.memory.items() if not name.startswith((_OWN, OPTIMISER))}
        losses = BatchLosses(model.device, step)
        with reproducible_torch(settings):
            model.load(received, start.tensors, "pretrain")
            # Encoder and contrast layers train; the head rests as it came.
            for name, part in model.net.named_children():
                part.train(name in _TRAINS)
                part.requires_grad_(name in _TRAINS)
            context = model.round_context(received, start._replace(memory=others), share, "pretrain")
            count, size = len(split.images), settings.batch_size
            keys = model.keys(received, "pretrain")
            own = ContrastiveContext(model.net, mine, count, size, purpose, first_views, patients, model.device, keys)
            with torch.autocast(model.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                objective = begin_contrastive(phase.contrastive, own)  # before a correction hooks into the net
            with correction_scope(build_correction(self._experiment.correction, settings), context) as correction:
                optimiser = RoundOptimiser(model.net, settings)
                optimiser.recall(start.memory)
                for epoch in range(settings.epochs):
                    order = list(batches(len(split.images), settings, (*purpose, epoch)))
                    bytes_of = model.batches(split.images, order)
                    for number, (samples, pixels) in enumerate(zip(order, bytes_of, strict=True)):
                        if stop():
                            raise StoppedError(f"the run was aborted in {step.name}.")
                        # Two views of each image, drawn by epoch and image, so that a repeated round draws the same.
                        seed = (*purpose, epoch, "views")
                        drawn = two_views(pixels, samples, phase.views, seed, grey=grey)
                        first, second = (model.to_device(view) for view in drawn)
                        numbers, whose = model.brought(torch.from_numpy(samples)), model.brought(patients[samples])
                        views = Views(first, second, numbers, whose)
                        clock = Clock(step.round, step.rounds, epoch, settings.epochs, number, len(order))
                        with torch.autocast(model.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                            loss = objective.loss(views, clock)
                            penalty = correction.penalty(first)
                        losses.note(loss, clock)
                        optimiser.step(loss if penalty is None else loss + penalty, correction, clock)
                    losses.settle()
                outcome, kept, followers = correction.finish(), objective.finish(), objective.leaving()
            memory = {
                **outcome.memory,
                **{f"{_OWN}{name}": value for name, value in kept.items()},
                **optimiser.memory(),
            }
            mean = float(np.mean(losses.values))
            return Pretrained(
                tensors=model.shared_state(outcome, "pretrain", followers),
                images=len(split.images),
                patients=len(set(split.patients)),
                loss=mean,
                snapshot=Snapshot(
                    model.personal_state(),
                    {"contrast_loss": mean, **outcome.figures},
                    {name: to_cpu(value) for name, value in memory.items()},
                ),
                ways=outcome.ways,
            )
