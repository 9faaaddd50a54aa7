"""One round of training at one site: global tensors and a snapshot in, an update and a new snapshot out.

Pure: nothing is remembered between calls, so a round may be run again from its predecessor and gives the same
bits. The plain loop, the FLARE executor and the ModelLearner all drive this one class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedretina.corrections.correction import LocalRound, build_correction
from fedretina.data.augment import augment, drawn_orientations, orientations
from fedretina.data.site_data import SiteData, Split
from fedretina.data.splits import labelled_subset
from fedretina.errors import TrainingError
from fedretina.evaluation.figures import Evaluation, evaluate
from fedretina.evaluation.support import supported_auc
from fedretina.exchange.partition import GRAM, MEAN, MOMENT, STATISTIC, VARIANCE
from fedretina.exchange.payload import Tensors
from fedretina.local.features import FrozenOutputs
from fedretina.local.head_start import fitted_heads
from fedretina.local.model import LocalModel, to_cpu
from fedretina.local.site_state import Snapshot
from fedretina.local.supervised import (
    OPTIMISER,
    EpochContext,
    EpochResult,
    Inputs,
    Predictions,
    correction_scope,
    labelled_epochs,
    require_a_batch,
)
from fedretina.losses.objective import Clock, build_objective
from fedretina.networks.dropout import Answered, answered_with_features
from fedretina.networks.encoder import Encoder
from fedretina.networks.weights import Provenance
from fedretina.seeds import reproducible_torch
from fedretina.settings.correction import FedProxSettings
from fedretina.settings.encoder import Normalisation
from fedretina.settings.experiment import Experiment
from fedretina.settings.images import AugmentSettings
from fedretina.settings.plan import PhaseSettings, Step
from fedretina.settings.training import TrainingSettings
from fedretina.uncertainty.estimators import auc_scores, build_estimator
from fedretina.uncertainty.evidence import as_if_graded
from fedretina.uncertainty.temperature import fit_temperature
from fedretina.uncertainty.theta import Theta, site_theta

_EVALUATION_BATCH = 128
_TRAVELS = "travels:"  # before the names of what the site keeps of the model that travels, beside its own
_ALONG = "along:"  # before the names of what the optimiser of the site's own model keeps


class Update(NamedTuple):
    """What a round of training gives.

    Attributes:
        tensors: The shared part of the network after training, by key, and what the correction sends beside it.
        theta: The threshold of the site's uncertainty and how it came about.
        images: Training images of the site that the round learned from (n_i).
        patients: Patients of these images.
        snapshot: The personal part after training, and the correction's memory. Where the site trains a model of its
            own beside the one that travels, that model, whole, so that it covers the aggregate wherever the two are
            joined; the other's personal part is in the memory then.
        ways: See `Outcome.ways`.
    """

    tensors: Tensors
    theta: Theta
    images: int
    patients: int
    snapshot: Snapshot
    ways: Mapping[str, float] = MappingProxyType({})


class LocalTrainer:
    """Trains and evaluates the row's network on one site's data.

    Args:
        experiment: The run's settings.
        data: The site's data; its grading scheme decides the width of the head.

    Raises:
        TrainingError: The head travels, and the site's grades do not fit it.
        SettingsError: The correction does not go with the optimiser.
    """

    def __init__(self, experiment: Experiment, data: SiteData) -> None:
        self._experiment = experiment
        self._data = data
        self._objective = build_objective(experiment.objective)
        self._estimator = build_estimator(experiment.evaluation)
        self._phases = {phase.name: experiment.phase(phase.name) for phase in experiment.phases}
        self._corrections = {
            name: build_correction(experiment.correction, phase.training or experiment.training)
            for name, phase in self._phases.items()
        }
        # What holds a model of the site's own to the aggregate is the proximal term of FedProx, with lambda for mu.
        self._pull = build_correction(FedProxSettings(mu=experiment.tune.pull), experiment.training)
        self.model = LocalModel(experiment, data.grading)
        self.partition = self.model.partition
        self._frozen = FrozenOutputs(self.model.net, experiment, data) if self.model.net.frozen else None

    @property
    def normalisation(self) -> Normalisation:
        """How the network normalises images: as set, else as the weights that it started from ask for."""
        return self.model.net.normalisation

    def initial(self, shared: Tensors | None = None, step: Step | None = None) -> Snapshot:
        """The personal part that the seed gives, before any training; heads fitted where the settings say so.

        Args:
            shared: The aggregate that the site's first round with labels received; without it nothing is fitted.
            step: That round.
        """
        if shared is None or step is None or self._experiment.network.head.start == "seed":
            return Snapshot(self.model.start, {})
        split, phase = self._labelled(step), self._phase(step)
        with reproducible_torch(self._settings(step)):
            self.model.load(shared, self.model.start)
            clock = Clock(0, phase.rounds, 0, 1, 0, 1)
            heads = fitted_heads(self.model.net, self._seen(split), split.labels, self._objective, clock)
        return Snapshot({**self.model.start, **heads}, {})

    @property
    def provenance(self) -> Provenance:
        """Where the start of the encoder comes from."""
        found = self.model.net.provenance
        assert found is not None  # only a network without memory has none
        return found

    def train(
        self,
        shared: Tensors,
        start: Snapshot,
        step: Step,
        stop: Callable[[], bool] = lambda: False,
        share: float = 1.0,
    ) -> Update:
        """Run the local epochs of one round.

        Args:
            shared: The aggregate that the server sent, with the correction's controls.
            start: The site's state after its last accepted round.
            step: Which round of which phase.
            stop: Asked before each batch; True ends the round.
            share: The site's training images over the mean of all sites.

        Raises:
            StoppedError: `stop` said so; nothing is kept.
            TrainingError: Fewer images than a batch, or a loss that is not finite; nothing is kept then.
        """
        settings = self._settings(step)
        split = self._labelled(step)
        require_a_batch(len(split.labels), settings)
        with reproducible_torch(settings):
            self.model.load(shared, self._travelling(start))
            corrections = {
                name: kept for name, kept in start.memory.items() if not name.startswith((OPTIMISER, _TRAVELS, _ALONG))
            }
            context = self.model.round_context(shared, start._replace(memory=corrections), share, "train")
            with correction_scope(self._corrections[step.phase], context) as correction:
                seen = self._epochs(split, correction, step, stop, settings, start.memory)
                outcome = correction.finish()
            leaving, personal = self.model.shared_state(outcome, "train"), self.model.personal_state()
            memory = {name: to_cpu(tensor) for name, tensor in outcome.memory.items()} | dict(seen.memory)
            if self._experiment.tune.along:
                memory |= {f"{_TRAVELS}{key}": tensor for key, tensor in personal.items()}
                seen = self._along(split, shared, start, step, stop)
                personal = self.model.moved_state()
                memory |= {f"{_ALONG}{name}": tensor for name, tensor in seen.memory.items()}
            theta = self._theta(seen.answers, start, split)
            record = {"theta": theta._asdict(), **self._record_of(seen), **outcome.figures}
            behind = len(split.labels), len(set(split.patients))
            return Update(leaving, theta, *behind, Snapshot(personal, record, memory), outcome.ways)

    def _travelling(self, start: Snapshot) -> Tensors:
        """What the site kept of the model that travels: all that it kept, unless a model of its own goes along."""
        beside = {key: start.memory.get(f"{_TRAVELS}{key}") for key in self.partition.personal}
        return {key: start.tensors[key] if kept is None else kept for key, kept in beside.items()}

    def _along(
        self, split: Split, shared: Tensors, start: Snapshot, step: Step, stop: Callable[[], bool]
    ) -> EpochResult:
        """Train the site's own model (Ditto: Li et al., ICML 2021, Algorithm 1), and leave it in the network.

        v goes down the gradient of f_i(v) + lambda/2 ||v - w_t||^2, w_t being the aggregate that the round began with,
        over the same batches as the model that travels. Differs from the paper: parameters that never travel are free,
        for there is nothing to hold them to, and v begins at the first aggregate that the site receives with labels.
        """
        memory = {name.removeprefix(_ALONG): kept for name, kept in start.memory.items() if name.startswith(_ALONG)}
        self.model.load(shared, start.tensors)
        context = self.model.round_context(shared, Snapshot({}, {}), 1.0, "train")
        with correction_scope(self._pull, context) as pull:
            return self._epochs(split, pull, step, stop, self._tuned(step), memory)

    def statistics(self, shared: Tensors) -> Tensors:
        """Mean and variance of what enters each BatchNorm of the encoder at the aggregate, over the training images."""
        with reproducible_torch(self._experiment.training):
            self.model.load(shared, self.model.start)
            net = self.model.net.eval()
            return activation_statistics(net.encoder, self._seen(self._data.split("train")), net.features)

    def tune(self, shared: Tensors, kept: Snapshot, step: Step, stop: Callable[[], bool] = lambda: False) -> Snapshot:
        """Fine-tune the chosen model on the site's own data, all parts and without a correction.

        Args:
            shared: The chosen aggregate.
            kept: The site's personal part for it.
            step: The tuning step.
            stop: Asked before each batch; True ends it.

        Returns:
            The whole model, less what is frozen, as a personal part, so that it covers the aggregate wherever the two
            are joined.
        """
        # The schedule ends with the rounds: the last one's part of a cosine would be next to nothing.
        settings = self._tuned(step).model_copy(update={"schedule": "constant"})
        last = self._experiment.phases[-1].rounds  # annealed objectives stay where training left them
        with reproducible_torch(settings):
            self.model.load(shared, kept.tensors)
            at = step._replace(round=last - 1, rounds=last)
            seen = self._epochs(self._labelled(step), LocalRound(), at, stop, settings, {})
            return Snapshot(self.model.moved_state(), {"theta": kept.record.get("theta"), **self._record_of(seen)})

    def moments(self, shared: Tensors, personal: Tensors) -> Tensors:
        """Sums over the features of the validation images, weighed with the site's own temperature on them."""
        split = self._data.split("val")
        labels = np.asarray(split.labels.numpy(), dtype=np.int64)
        found = self.answers(shared, personal, split)
        answer = self._estimator.predict(found.logits)
        temperature = fit_temperature(answer.probabilities, labels).value  # T_k
        with reproducible_torch(self._experiment.training), torch.inference_mode():
            return feature_moments(map(self.model.net.features, self._seen(split)), temperature)

    def answers(self, shared: Tensors, personal: Tensors, split: Split) -> Predictions:
        """What the site's model, aggregate and personal part together, answers to a whole split, with the features.

        Args:
            shared: The aggregate.
            personal: The personal part.
            split: The images. What frozen stages make of them is read from the site's disk, and kept there.
        """
        with reproducible_torch(self._experiment.training):
            self.model.load(shared, personal)
            return self._pass(split)

    def evaluate(self, answers: Predictions) -> Evaluation:
        """Figures of a split's answers by the row's estimator and AUC input."""
        chosen = self._experiment.evaluation
        tau = self._experiment.tau
        return evaluate(answers.logits, answers.labels, self._estimator, chosen.auc_input, tau)

    def supported(self, answers: Predictions, patients: Sequence[str]) -> float | None:
        """Mean AUC of a split's answers over the grades with support, ranked as in `evaluate`; None if none has."""
        chosen = self._experiment.evaluation
        scores = auc_scores(answers.logits, chosen.auc_input, self._experiment.tau, self._estimator)
        least = self._experiment.report.least_patients
        return supported_auc(scores, answers.labels.numpy(), patients, least).value

    def state(self, shared: Tensors, personal: Tensors) -> Tensors:
        """All tensors of the site's model; checks that nothing is missing or left over."""
        self.model.load(shared, personal)
        return self.model.full_state()

    def encoder_state(self, shared: Tensors, personal: Tensors) -> Tensors:
        """All tensors of the encoder after a phase without labels: what came, what the site keeps, what stood still."""
        self.model.load(shared, personal, "pretrain")
        return {key: tensor for key, tensor in self.model.full_state().items() if key.startswith("encoder.")}

    def _phase(self, step: Step) -> PhaseSettings:
        """The phase of a step, with the settings that hold in it; a step between phases has the last one's."""
        return self._phases.get(step.phase) or self._experiment.phase(step.phase)

    def _settings(self, step: Step) -> TrainingSettings:
        return self._phase(step).training or self._experiment.training

    def _tuned(self, step: Step) -> TrainingSettings:
        return self._experiment.tune.over(self._settings(step))

    def _labelled(self, step: Step) -> Split:
        """The training images whose labels the step's phase may use."""
        split, share = self._data.split("train"), self._phase(step).label_share
        if share == 1:
            return split
        chosen = labelled_subset(split.patients, split.labels.tolist(), share, self._experiment.seed)
        patients, files = (tuple(names[at] for at in chosen) for names in (split.patients, split.files))
        digests = tuple(split.digests[at] for at in chosen) if split.digests else ()
        return Split(split.images[chosen], split.labels[chosen], patients, files, digests)

    def _epochs(
        self,
        split: Split,
        correction: LocalRound,
        step: Step,
        stop: Callable[[], bool],
        settings: TrainingSettings,
        memory: Tensors,
    ) -> EpochResult:
        random = self._phase(step).augment or self._experiment.augment
        purpose = (self._experiment.seed, self._data.name, step.phase, step.round)
        context = EpochContext(step, settings, self.inputs(split, random), purpose, memory)
        return labelled_epochs(self.model, self._objective, split, correction, context, stop)

    def inputs(self, split: Split, random: AugmentSettings) -> Inputs:
        """What the network sees of images in training: images with random transforms, or frozen outputs of such.

        Args:
            split: The images.
            random: The transforms; they are done where the network is.
        """
        frozen = None if self._frozen is None or random.endless else self._frozen.of(split, orientations(random))

        def epoch(order: Sequence[NDArray[np.int64]], purpose: tuple[int | str, ...]) -> Iterator[Tensor]:
            if frozen is not None:
                yield from (frozen(samples, drawn_orientations(samples, random, purpose)) for samples in order)
                return
            for samples, pixels in zip(order, self.model.batches(split.images, order), strict=True):
                yield augment(pixels, samples, random, purpose)

        return epoch

    def _seen(self, split: Split) -> Iterator[Tensor]:
        """A whole split as it is, in batches on the device: its images, or what frozen stages make of them."""
        outputs = None if self._frozen is None else self._frozen.of(split)
        for begin in range(0, len(split.images), _EVALUATION_BATCH):
            end = min(begin + _EVALUATION_BATCH, len(split.images))
            if outputs is None:
                part = self.model.brought(split.images[begin:end]).float().div_(255)
            else:
                part = outputs(np.arange(begin, end))
            yield self.model.to_device(part)

    def _record_of(self, seen: EpochResult) -> dict[str, float]:
        """How the epochs went, for the site's own record."""
        predicted = np.argmax(self._estimator.predict(seen.answers.logits).probabilities, axis=1)
        right = np.equal(predicted, seen.answers.labels.numpy())
        return {"loss": float(np.mean(seen.losses)), "accuracy": float(np.mean(right))}

    def _theta(self, online: Predictions, start: Snapshot, split: Split) -> Theta:
        settings, seen = self._experiment.theta, online
        previous = start.record.get("theta", {}).get("value")
        asked = settings.source.split
        if asked == "val" and not self._data.may_be_told(asked):  # theta leaves the site, like any figure of the split
            nobody = np.empty(0)
            return site_theta(nobody, nobody > 0, settings, previous)._replace(reason="too_few_patients")
        if asked is not None:
            seen = self._pass(split if asked == "train" else self._data.split(asked))
        answer = self._estimator.predict(seen.logits)
        wrong = np.not_equal(np.argmax(answer.probabilities, axis=1), seen.labels.numpy())
        uncertainty = answer.uncertainty
        if settings.reference_grades is not None:
            uncertainty = as_if_graded(uncertainty, self._data.scheme.num_classes, settings.reference_grades)
        return site_theta(uncertainty, wrong, settings, previous)

    def _pass(self, split: Split) -> Predictions:
        net = self.model.net.eval()
        found: list[Answered] = []
        with torch.inference_mode():
            for there in self._seen(split):
                said = answered_with_features(net, there, self._experiment.evaluation.passes)
                middle = None if said.middle is None else said.middle.cpu()
                found.append(Answered(said.logits.float().cpu(), said.features.cpu(), middle))
        middles = [one.middle for one in found if one.middle is not None]
        return Predictions(
            torch.cat([one.logits for one in found]),
            split.labels,
            torch.cat([one.features for one in found]),
            torch.cat(middles) if middles else None,
        )


def activation_statistics(encoder: Encoder, batches: Iterable[Tensor], run: Any) -> dict[str, Tensor]:
    """Gather mean and variance per channel of the input of each BatchNorm, pooled over all images and places.

    The network stands in evaluation mode, so that a batch does not normalise the next layer's input by itself.
    Sums are float64: the variance is a difference of large numbers.

    Args:
        encoder: The network's encoder; its frozen stages are left out, for nothing of them can be mixed.
        batches: What the network takes.
        run: Sends a batch through the network.

    Returns:
        By key `statistic:LAYER.mean` and `statistic:LAYER.variance`, float32 [C].
    """
    frozen = {id(module) for part in encoder.frozen_parts() for module in part.modules()}
    layers = {
        name: module
        for name, module in encoder.named_modules()
        if isinstance(module, _BatchNorm) and id(module) not in frozen
    }
    sums: dict[str, list[Any]] = {name: [0.0, 0.0, 0] for name in layers}

    def listen(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            wide = inputs[0].detach().double()
            places = [axis for axis in range(wide.dim()) if axis != 1]
            entry = sums[name]
            entry[0] = entry[0] + wide.sum(places).cpu()
            entry[1] = entry[1] + wide.square().sum(places).cpu()
            entry[2] += wide.numel() // wide.shape[1]

        return hook

    hooks = [module.register_forward_pre_hook(listen(name)) for name, module in layers.items()]
    try:
        with torch.inference_mode():
            for images in batches:
                run(images)
    finally:
        for hook in hooks:
            hook.remove()
    found: dict[str, Tensor] = {}
    for name, (total, squares, count) in sums.items():
        mean = total / count
        found[f"{STATISTIC}encoder.{name}{MEAN}"] = mean.float()
        found[f"{STATISTIC}encoder.{name}{VARIANCE}"] = (squares / count - mean.square()).clamp(min=0).float()
    return found


def feature_moments(features: Iterable[Tensor], temperature: float) -> dict[str, Tensor]:
    """Sum X^T X and X^T T over images, X being the features with a 1 behind them.

    What the server makes of the sums of all sites: `aggregation.temperatures`.

    Args:
        features: Batches [B, F].
        temperature: T_k, the site's own temperature, the same for each image.

    Returns:
        `GRAM` [F + 1, F + 1] and `MOMENT` [F + 1], float64, on the CPU.

    Raises:
        TrainingError: There are no images.
    """
    gram: Tensor | None = None
    moment: Tensor | None = None
    for batch in features:
        wide = batch.detach().cpu().double()
        rows = torch.cat([wide, torch.ones(wide.shape[0], 1, dtype=torch.float64)], dim=1)
        square, sums = rows.T @ rows, rows.sum(0) * temperature
        gram = square if gram is None else gram + square
        moment = sums if moment is None else moment + sums
    if gram is None or moment is None:
        raise TrainingError("moments were asked of a split without images: give the split at least one.")
    return {GRAM: gram, MOMENT: moment}
