"""A row's rounds over hospitals in memory: the product's own training and mixing, without the files of a run.

The plain loop keeps every step on the disk so that it may be interrupted, and measures each of them: at two dozen
hospitals that costs more than training heads does. Here a run is begun again from its start, and the model is measured
once. Training (`LocalTrainer`), mixing (`Mixer`) and their order are the product's, and so are the bits
(tests/papers/test_block_training.py compares the two).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from fedretina.aggregation.mixing import Mixer, Round
from fedretina.aggregation.spool import Spool
from fedretina.analytic.ridge import RidgeHead
from fedretina.analytic.sums import Sums, total
from fedretina.corrections.gradients import RATIO
from fedretina.data.site_data import SiteData, Split
from fedretina.errors import SettingsError
from fedretina.exchange.payload import tensors_bytes
from fedretina.local.features import FrozenEncoder, FrozenOutputs
from fedretina.local.heads_from_sums import ANSWERS, HeadsFromSums
from fedretina.local.site_state import Snapshot
from fedretina.local.trainer import LocalTrainer
from fedretina.networks.encoder import Encoder
from fedretina.seeds import reproducible_torch
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import WeightsSettings
from fedretina.settings.plan import Plan
from fedretina_papers.one_place import rounds_in_one_place

Answers = dict[str, dict[str, Tensor]]
"""Logits by hospital and split."""


class Ran(NamedTuple):
    """What a run gave.

    Attributes:
        answers: Logits of validation and test images by hospital.
        up: Bytes that all hospitals sent.
        down: Bytes that were sent to them.
        digest: Of what travels of the last model, as a run's record has it; "" where nothing is mixed.
        correction: How long what corrects the drift is beside the raw gradient (`correction_ratio` in a site's
            curves), the median of rounds and hospitals; None where nothing corrects.
    """

    answers: Answers
    up: int
    down: int
    digest: str = ""
    correction: float | None = None


class GivenRows:
    """Stands for `FrozenOutputs` where a split holds what the frozen encoder made of its images."""

    def of(self, split: Split, orientations: Any = (0,)) -> Callable[..., Tensor]:
        """Gives rows of the split by number."""
        return lambda samples, orientation=None: split.images[torch.as_tensor(samples)]


class RowTrainer(LocalTrainer):
    """`LocalTrainer` of a network whose encoder is frozen wholly, on rows that it made before.

    Args:
        experiment: The run's settings.
        data: Of `hospitals.deal`.

    Raises:
        SettingsError: The encoder is not frozen wholly, or augmentation asks for other pixels.
    """

    def __init__(self, experiment: Experiment, data: SiteData) -> None:
        if experiment.network.frozen != "all" or experiment.augment.flip or experiment.augment.endless:
            raise SettingsError("a block trains on kept rows: freeze all of the encoder, and augment nothing.")
        # Nothing runs the encoder any more, so its weights are not read, run by run.
        network = experiment.network.model_copy(update={"weights": WeightsSettings(source="none")})
        super().__init__(experiment.model_copy(update={"network": network}), data)
        self._frozen = cast(FrozenOutputs, GivenRows())
        net = self.model.net
        # To load millions of its weights for each round would cost more than the round.
        net.encoder = _NoEncoder(net.encoder)
        self.model.leave_out("encoder.")
        if net.dropouts:
            # Rows hold pooled features, so dropout that follows the last stage stands behind the average here.
            net.projector, net.dropouts = list(net.dropouts.values())[-1], nn.ModuleDict()
            net.frozen = net.encoder.steps
        net.frozen_is_given((net.encoder.features,))


def trainers_of(experiment: Experiment, hospitals: Mapping[str, SiteData]) -> dict[str, LocalTrainer]:
    """A trainer for each hospital, in the order of their names; those of equal grades share a network.

    Where the encoder is frozen wholly, hospitals hold what it made of their images; else the images themselves.
    """
    kind = RowTrainer if experiment.network.frozen == "all" else LocalTrainer
    built: list[tuple[SiteData, LocalTrainer]] = []
    found: dict[str, LocalTrainer] = {}
    for name, data in sorted(hospitals.items()):
        like = next((one for other, one in built if _alike(other, data)), None)
        if like is None:
            like = kind(experiment, data)
            built.append((data, like))
        found[name] = copy(like)  # the network is loaded for each task, so that hospitals can share it
        found[name]._data = data
    return found


def _alike(one: SiteData, other: SiteData) -> bool:
    """Whether two hospitals grade alike, whatever their words for it in the manifest."""
    return (one.scheme.grades, one.scheme.covers) == (other.scheme.grades, other.scheme.covers)


class _NoEncoder(Encoder):
    """Stands for an encoder whose features are given: its widths, and none of its weights."""

    def __init__(self, whole: Encoder) -> None:
        super().__init__([nn.Identity() for _ in whole.stages], whole.widths)
        self.features = whole.features
        self.freeze(len(whole.stages))


class RowSums(HeadsFromSums):
    """`HeadsFromSums` on rows that the encoder made before.

    Attributes:
        solved: The federated head, where it is known.
    """

    def __init__(self, experiment: Experiment, data: SiteData) -> None:
        super().__init__(experiment, data)
        self._encoder = cast(FrozenEncoder, _GivenFeatures())
        self.solved: RidgeHead | None = None

    def federated(self, total: Sums) -> RidgeHead:
        """The head of all; solved once for all hospitals where somebody has put it in `solved`."""
        return self.solved or super().federated(total)


class _GivenFeatures:
    def features(self, split: Split) -> Tensor:
        return split.images.float()


def summed(experiment: Experiment, hospitals: Mapping[str, SiteData]) -> dict[str, Ran]:
    """Heads from sums, all that the same sums give, by `ANSWERS`; of the hospitals' own heads nothing is sent."""
    assert experiment.sums is not None
    hosts = {name: RowSums(experiment, data) for name, data in sorted(hospitals.items())}
    gave = {name: host.sums() for name, host in hosts.items()}
    whole = total((name, sums) for name, (sums, _) in gave.items())
    federated = next(iter(hosts.values())).federated(whole)
    answers: dict[str, Answers] = {answer: {} for answer in ANSWERS}
    for name, host in hosts.items():
        host.solved = federated
        for answer, head in host.heads(whole, gave[name][1]).items():
            answers[answer][name] = {
                split: hospitals[name].split(split).images.float() @ head.weight.T + head.bias
                for split in ("val", "test")
            }
    up = sum(tensors_bytes(sums.packed()) for sums, _ in gave.values())
    down = tensors_bytes(whole.packed()) * len(hosts)
    return {answer: Ran(said, *((0, 0) if answer == "own" else (up, down))) for answer, said in answers.items()}


def trained(experiment: Experiment, hospitals: Mapping[str, SiteData], folder: Path) -> Ran:
    """The rounds of a row, from its start to its last model.

    Args:
        experiment: The row's settings: one phase with labels, one model for all.
        hospitals: By name.
        folder: For the updates of a round; it may be in memory.

    Raises:
        SettingsError: The row asks for what blocks do not do.
    """
    known = {"train", "tune", "validate", "finalise"}
    plan = Plan.of(experiment)
    if not {step.task for step in plan} <= known or len(experiment.phases) != 1:
        raise SettingsError(f"a block runs rows of one phase with labels and one model for all, not {experiment.row}.")
    trainers = trainers_of(experiment, hospitals)
    first = next(iter(trainers.values()))
    parts, begun = first.partition, first.model.net.state_dict()
    mixer = Mixer(experiment, parts, None)
    state = {key: begun[key].clone() for key in parts.shared}
    state |= {key: torch.zeros(parts.shapes[key]) for key in parts.controls}
    mean = sum(data.counts["train"] for data in hospitals.values()) / len(hospitals)
    kept: dict[str, Snapshot] = {}
    up, down, digest = 0, 0, ""
    ratios: list[float] = []
    for step in plan:
        shared = {key: state[key] for key in parts.shared}
        if step.task == "train":
            sent = {key: state[key] for key in parts.moving("train").travelling if key in state}
            spool, scalars = Spool(folder / "spool"), {}
            for name, trainer in trainers.items():
                start = kept[name] if name in kept else trainer.initial(sent, step)
                share = hospitals[name].counts["train"] / mean
                update = trainer.train(sent, start, step, share=share)
                spool.put(name, update.tensors)
                scalars[name] = {"theta": update.theta.value, "images": float(update.images)}
                kept[name] = update.snapshot
                ratios += [float(update.snapshot.record[RATIO])] if RATIO in update.snapshot.record else []
                up, down = up + tensors_bytes(update.tensors), down + tensors_bytes(sent)
            with reproducible_torch(experiment.training):
                mixed, record = mixer.one_for_all(Round(spool, scalars, tuple(trainers), step, state))
            state, digest = dict(mixed), str(record["digest"])
        if step.task == "tune":
            kept = {name: trainer.tune(shared, kept[name], step) for name, trainer in trainers.items()}
    shared = {key: state[key] for key in parts.shared}
    answers = {
        name: {
            split: trainer.answers(shared, kept[name].tensors, hospitals[name].split(split)).logits
            for split in ("val", "test")
        }
        for name, trainer in trainers.items()
    }
    return Ran(answers, up, down, digest, median(ratios) if ratios else None)


def pooled(experiment: Experiment, hospitals: Mapping[str, SiteData]) -> Ran:
    """The same network in the same passes, over all images in one place; see `rounds_in_one_place`."""
    trainers = trainers_of(experiment, hospitals)
    for one in rounds_in_one_place(experiment, hospitals, trainers):
        models = one.models
    answers = {
        name: {split: trainer.answers(*models[name], hospitals[name].split(split)).logits for split in ("val", "test")}
        for name, trainer in trainers.items()
    }
    return Ran(answers, 0, 0)
