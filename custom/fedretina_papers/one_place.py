"""A row's network on all images in one place: what travels is one for all sites, what stays is one a site.

Nothing federated can be expected to beat it, which makes it the upper bound beside a row; where sites have other grades
it is one trunk with a head a site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedretina.corrections.correction import LocalRound
from fedretina.data.augment import augment
from fedretina.data.site_data import SiteData
from fedretina.errors import TrainingError
from fedretina.exchange.payload import Tensors
from fedretina.local.supervised import BatchLosses, RoundOptimiser, batches, batches_an_epoch, summed_score
from fedretina.local.trainer import LocalTrainer
from fedretina.losses.objective import Clock, build_objective
from fedretina.networks.network import Network
from fedretina.seeds import reproducible_torch, seed_layers
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan, Step
from fedretina.settings.training import StretchSettings
from fedretina_papers.choices import require_one_place

_PARTS = ("encoder", "projector", "head", "exits")
_COUNTER = "num_batches_tracked"


Models = Mapping[str, tuple[Tensors, Tensors]]
"""By site: what travels in the row, and what stays."""


class Together(NamedTuple):
    """All sites' models after a round.

    Attributes:
        step: Which round.
        loss: Mean loss of its batches.
        models: Of all sites.
    """

    step: Step
    loss: float
    models: Models


def rounds_in_one_place(
    experiment: Experiment, sites: Mapping[str, SiteData], trainers: Mapping[str, LocalTrainer]
) -> Iterator[Together]:
    """All rounds of `OnePlace`, from the first on."""
    return OnePlace(experiment, sites, trainers).rounds()


class OnePlace:
    """Training of a row's network on all sites' images together, in the row's own passes.

    A batch holds images of any site; one of all sites' images has as many batches as those of each together. The
    optimiser goes on from round to round. A site's only image in a batch is left out where the site's own head has a
    BatchNorm, which one image gives no variance.

    Attributes:
        steps: Its rounds.

    Args:
        experiment: The row's settings.
        sites: Data by name.
        trainers: One for each; they give the networks, and nothing of them trains.

    Raises:
        SettingsError: The row cannot, see `require_one_place`.
        TrainingError: There are fewer images than a batch.
    """

    def __init__(
        self, experiment: Experiment, sites: Mapping[str, SiteData], trainers: Mapping[str, LocalTrainer]
    ) -> None:
        require_one_place(experiment.row, experiment)
        self._experiment, self._trainers = experiment, trainers
        self._together = _Networks(experiment, sites, trainers)
        self._settings = experiment.phases[0].training or experiment.training
        self.steps = [one for one in Plan.of(experiment) if one.task == "train"]
        if not batches_an_epoch(len(self._together.labels), self._settings.batch_size, self._settings.drop_last):
            raise TrainingError(
                f"all sites' training images are fewer than one batch of {self._settings.batch_size}: "
                "lower training.batch_size."
            )
        with reproducible_torch(self._settings):
            # Nothing is averaged between its rounds, so that what it knows holds on, whatever the row's sites do.
            on = self._settings.model_copy(update={"optimizer_state": "keep"})
            self._optimiser = RoundOptimiser(self._together.whole, on)

    def rounds(self, done: int = 0) -> Iterator[Together]:
        """Train round after round.

        Args:
            done: Rounds that `recall` has brought.

        Raises:
            DivergedError: A loss that is not finite.
        """
        together, settings = self._together, self._settings
        objective = build_objective(self._experiment.objective)
        epochs = sum(one.epochs for one in settings.stretches or (StretchSettings(epochs=settings.epochs),))
        for step in self.steps[done:]:
            losses = BatchLosses(together.device, step)
            with reproducible_torch(settings):
                together.whole.train()
                for epoch in range(epochs):
                    purpose = (self._experiment.seed, "pooled", step.phase, step.round, epoch)
                    order = list(batches(len(together.labels), settings, purpose))
                    seed_layers(together.device, (*purpose, "dropout"))
                    for number, samples in enumerate(order):
                        clock = Clock(step.round, step.rounds, epoch, epochs, number, len(order))
                        loss = torch.zeros((), device=together.device)
                        with torch.autocast(together.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                            for labels, logits in together.logits(samples, (*purpose, "augment")):
                                score = summed_score(objective, logits, labels, clock)
                                loss = loss + score * (len(labels) / len(samples))
                        losses.note(loss, clock)
                        if loss.requires_grad:  # it does not where each site's only image was left out
                            self._optimiser.step(loss, LocalRound(), clock)
                    losses.settle()
            yield Together(step, float(np.mean(losses.values)), self.models())

    def models(self) -> Models:
        """Models of all sites as they stand; copies, which further rounds leave as they are."""
        return self._together.models(self._trainers)

    def memory(self) -> Tensors:
        """Networks and optimiser as they stand, from which a round goes on to the same bits."""
        return {**{key: held.detach() for key, held in self._held()}, **self._optimiser.memory()}

    def recall(self, memory: Tensors) -> None:
        """Go on from what `memory` gave."""
        with torch.no_grad():
            for key, held in self._held():
                held.copy_(memory[key])
        self._optimiser.recall(memory)

    def _held(self) -> Iterator[tuple[str, Tensor]]:
        """All numbers of the networks; what several of them share comes once."""
        yield from self._together.whole.named_parameters()
        yield from self._together.whole.named_buffers()


class _Networks:
    """Networks of all sites that are one in what travels, over all their training images in one place.

    Attributes:
        nets: By site; those that would be equal are the same.
        whole: All that trains; the encoder by its own name, by which an optimiser knows its rate.
        labels: Of all training images, site after site.
        device: Where they are.
    """

    def __init__(
        self, experiment: Experiment, sites: Mapping[str, SiteData], trainers: Mapping[str, LocalTrainer]
    ) -> None:
        self._first = next(iter(trainers.values()))
        self.device = self._first.model.device
        parts = self._first.partition
        if any(not key.endswith(_COUNTER) for key in parts.personal):  # which never travel, whatever else does
            self.nets = {name: deepcopy(trainer.model.net) for name, trainer in trainers.items()}
        else:  # those of equal grades share a network, and their images pass it together
            own = {id(trainer.model.net): deepcopy(trainer.model.net) for trainer in trainers.values()}
            self.nets = {name: own[id(trainer.model.net)] for name, trainer in trainers.items()}
        self._lead = next(iter(self.nets.values()))
        for net in self.nets.values():
            for part in _PARTS:
                if any(key.startswith(f"{part}.") for key in parts.shared):
                    setattr(net, part, getattr(self._lead, part))
        self._each = list({id(net): net for net in self.nets.values()}.values())
        named: dict[str, nn.Module] = {str(at): net for at, net in enumerate(self._each)}
        behind = (module for part in _PARTS[1:] for module in _part(self._lead, part).modules())
        self._least = 2 if any(isinstance(module, _BatchNorm) for module in behind) else 1
        self._given = experiment.network.frozen == "all"
        self.whole = nn.ModuleDict(named if self._given else {"encoder": self._lead.encoder, **named})
        splits = {name: data.split("train") for name, data in sorted(sites.items())}
        self._images = torch.cat([split.images for split in splits.values()])
        self.labels = torch.cat([split.labels for split in splits.values()])
        numbers = {id(net): at for at, net in enumerate(self._each)}
        self._owner = np.concatenate(
            [np.full(len(split.labels), numbers[id(self.nets[name])]) for name, split in splits.items()]
        )
        self._random = experiment.phases[0].augment or experiment.augment

    def logits(self, samples: NDArray[np.int64], purpose: tuple[int | str, ...]) -> Iterator[tuple[Tensor, Tensor]]:
        """What the networks answer to a batch, each to its own sites' images: their labels and their logits."""
        features, averages = torch.empty(0), list[Tensor]()
        if not self._given:  # all images at once, or BatchNorm would see each site's few by themselves
            pixels = augment(self._images[samples], samples, self._random, purpose)
            features = self._lead.features(self._first.model.to_device(pixels), averages)
        for at, count in zip(*np.unique(self._owner[samples], return_counts=True), strict=True):
            if count < self._least:
                continue
            mine = self._owner[samples] == at
            rows, net = samples[mine], self._each[at]
            labels = self._first.model.brought(self.labels[rows])
            if self._given:
                yield labels, net(self._first.model.to_device(self._images[rows]))
            else:
                own = torch.from_numpy(mine)
                yield labels, net.answers(features[own], [one[own] for one in averages])

    def models(self, trainers: Mapping[str, LocalTrainer]) -> dict[str, tuple[Tensors, Tensors]]:
        """What travels and what stays, by site; copies, which further rounds leave as they are."""
        found: dict[str, tuple[Tensors, Tensors]] = {}
        for name, trainer in trainers.items():
            parts = trainer.partition
            state = {key: tensor.detach().cpu().clone() for key, tensor in self.nets[name].state_dict().items()}
            found[name] = ({key: state[key] for key in parts.shared}, {key: state[key] for key in parts.personal})
        return found


def _part(net: Network, name: str) -> nn.Module:
    found = getattr(net, name, None)
    return found if isinstance(found, nn.Module) else nn.Identity()
