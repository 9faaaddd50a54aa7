"""One round of training at one site: global tensors and a snapshot in, an update and a new snapshot out.

Pure: nothing is remembered between calls, so a round may be run again from its predecessor and gives the same
bits. The plain loop, the FLARE executor and the ModelLearner all drive this one class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from fedretina.corrections.correction import Ground, LocalRound, Outcome
from fedretina.corrections.settings import build_correction
from fedretina.data.augment import augment
from fedretina.data.site_data import SiteData, Split
from fedretina.errors import SettingsError, StoppedError, TrainingError
from fedretina.evaluation.evaluate import Evaluation, evaluate
from fedretina.exchange.partition import CONTROL
from fedretina.exchange.payload import Tensors
from fedretina.experiment import Experiment
from fedretina.local.activations import activation_statistics
from fedretina.local.moments import feature_moments
from fedretina.local.optimiser import RoundOptimiser
from fedretina.local.snapshot import Snapshot
from fedretina.local.training import StretchSettings, TrainingSettings, reproducible_torch
from fedretina.losses.objective import Batch, Clock
from fedretina.losses.settings import build_objective
from fedretina.networks.encoder import Normalisation
from fedretina.networks.network import Network, build_network
from fedretina.plan import Step
from fedretina.seeds import generator
from fedretina.uncertainty.estimators import ESTIMATORS
from fedretina.uncertainty.evidence import as_if_graded
from fedretina.uncertainty.temperature import fit_temperature
from fedretina.uncertainty.theta import Theta, youden_theta

_EVALUATION_BATCH = 128


class Answers(NamedTuple):
    """Logits [N, K] and labels [N] of the same samples, on the CPU in float32."""

    logits: torch.Tensor
    labels: torch.Tensor


class Update(NamedTuple):
    """What a round of training gives.

    Attributes:
        tensors: The shared part of the network after training, by key, and what the correction sends beside it.
        theta: The threshold of the site's uncertainty and how it came about.
        images: Training images of the site (n_i).
        snapshot: The personal part after training, and the correction's memory.
    """

    tensors: Tensors
    theta: Theta
    images: int
    snapshot: Snapshot


class LocalTrainer:
    """Trains and evaluates the row's network on one site's data.

    Args:
        experiment: The run's settings.
        data: The site's data; its grading scheme decides the width of the head.

    Raises:
        TrainingError: The head travels and the site has another number of grades.
    """

    def __init__(self, experiment: Experiment, data: SiteData) -> None:
        if experiment.grades not in (None, data.scheme.num_classes):
            raise TrainingError(
                f"the job's head has {experiment.grades} grades and this site's scheme {data.scheme.num_classes}: "
                "let the head be personal (exchange.personal: head)."
            )
        self._experiment = experiment
        self._data = data
        self._device = experiment.training.torch_device()
        self._objective = build_objective(experiment.objective)
        if not self._objective.needs <= Network.outputs:
            missing = ", ".join(sorted(self._objective.needs - Network.outputs))
            raise SettingsError(f"the objective needs {missing}, which the network does not give: choose another row.")
        self._correction = build_correction(experiment.correction, experiment.training)
        self._net = build_network(experiment.network, data.scheme.num_classes, experiment.seed)
        self.partition = experiment.partition(self._net)
        start = self._net.state_dict()
        self._start = {key: start[key].clone() for key in self.partition.personal}
        self.sealed_start = {key: start[key].clone() for key in self.partition.sealed}
        layout = torch.channels_last if experiment.training.channels_last else torch.contiguous_format
        self._net.to(device=self._device, memory_format=layout)  # type: ignore[call-overload]

    @property
    def normalisation(self) -> Normalisation:
        """How the network normalises images: as set, else as the weights that it started from ask for."""
        return self._net.normalisation

    def initial(self) -> Snapshot:
        """The personal part that the seed gives, before any training."""
        return Snapshot(self._start, {})

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
        settings = self._experiment.training
        split = self._data.split("train")
        if len(split.labels) < settings.batch_size:
            raise TrainingError(
                f"the site has {len(split.labels)} training images, fewer than one batch of {settings.batch_size}: "
                "lower training.batch_size or let the site add images."
            )
        with reproducible_torch(settings):
            self._load(shared, start.tensors)
            seen, losses, outcome = self._corrected_epochs(split, self._ground(shared, start, share), step, stop)
            theta = self._theta(seen, start)
            state = self._net.state_dict()
            record = {
                "theta": theta._asdict(),
                "loss": float(np.mean(losses)),
                "accuracy": float((seen.logits.argmax(1) == seen.labels).double().mean()),
                **outcome.figures,
            }
            controls = {key: _home(outcome.control[key.removeprefix(CONTROL)]) for key in self.partition.controls}
            personal = {key: _home(state[key]) for key in self.partition.personal}
            memory = {name: _home(tensor) for name, tensor in outcome.memory.items()}
            return Update(
                tensors={**{key: _home(state[key]) for key in self.partition.shared}, **controls},
                theta=theta,
                images=len(split.labels),
                snapshot=Snapshot(personal, record, memory),
            )

    def statistics(self, shared: Tensors) -> Tensors:
        """Mean and variance of what enters each BatchNorm of the encoder at the aggregate, over the training images."""
        with reproducible_torch(self._experiment.training):
            self._load(shared, self._start)
            self._net.eval()
            images = self._data.split("train").images
            batches = (self._to_device(part.float().div_(255)) for part in torch.split(images, _EVALUATION_BATCH))
            return activation_statistics(self._net.encoder, batches, self._net.features)

    def tune(self, shared: Tensors, kept: Snapshot, step: Step, stop: Callable[[], bool] = lambda: False) -> Snapshot:
        """Fine-tune the chosen model on the site's own data, all parts and without a correction.

        Args:
            shared: The chosen aggregate.
            kept: The site's personal part for it.
            step: The tuning step.
            stop: Asked before each batch; True ends it.

        Returns:
            The whole model as a personal part, so that it covers the aggregate wherever the two are joined.
        """
        tune = self._experiment.tune
        changed = {"epochs": tune.epochs, "stretches": (), "learning_rate": tune.learning_rate}
        settings = self._experiment.training.model_copy(update={k: v for k, v in changed.items() if v is not None})
        last = self._experiment.phases[-1].rounds  # annealed objectives stay where training left them
        with reproducible_torch(settings):
            self._load(shared, kept.tensors)
            at = step._replace(round=last - 1, rounds=last)
            seen, losses = self._epochs(self._data.split("train"), LocalRound(), at, stop, settings)
            record = {
                "theta": kept.record.get("theta"),
                "loss": float(np.mean(losses)),
                "accuracy": float((seen.logits.argmax(1) == seen.labels).double().mean()),
            }
            return Snapshot({key: _home(value) for key, value in self._net.state_dict().items()}, record)

    def moments(self, shared: Tensors, personal: Tensors) -> Tensors:
        """Sums over the features of the validation images, weighed with the site's own temperature on them."""
        split = self._data.split("val")
        labels = np.asarray(split.labels.numpy(), dtype=np.int64)
        found = self.answers(shared, personal, split)
        answer = ESTIMATORS[self._experiment.evaluation.estimator].answer(found.logits)
        temperature = fit_temperature(answer.probabilities, labels).value  # T_k
        with reproducible_torch(self._experiment.training), torch.inference_mode():
            batches = torch.split(split.images, _EVALUATION_BATCH)
            return feature_moments(
                (self._net.features(self._to_device(part.float().div_(255))) for part in batches), temperature
            )

    def answers(self, shared: Tensors, personal: Tensors, split: Split) -> Answers:
        """Logits of the site's model, aggregate and personal part together, over a whole split."""
        with reproducible_torch(self._experiment.training):
            self._load(shared, personal)
            return self._pass(split)

    def evaluate(self, answers: Answers) -> Evaluation:
        """Figures of a split's answers by the row's estimator and AUC input."""
        chosen = self._experiment.evaluation
        tau = self._experiment.objective.tweu.tau
        return evaluate(answers.logits, answers.labels, ESTIMATORS[chosen.estimator], chosen.auc_input, tau)

    def state(self, shared: Tensors, personal: Tensors) -> Tensors:
        """All tensors of the site's model; checks that nothing is missing or left over."""
        self._load(shared, personal)
        return {key: _home(tensor) for key, tensor in self._net.state_dict().items()}

    def _load(self, shared: Tensors, personal: Tensors) -> None:
        network = {key: tensor for key, tensor in shared.items() if not key.startswith(CONTROL)}
        self._net.load_state_dict({**network, **personal}, strict=True)

    def _ground(self, shared: Tensors, start: Snapshot, share: float) -> Ground:
        def there(tensors: Tensors) -> dict[str, torch.Tensor]:
            return {name: tensor.to(self._device) for name, tensor in tensors.items()}

        parameters = {key: self._net.get_parameter(key) for key in self.partition.parameters}
        control = {key.removeprefix(CONTROL): shared[key] for key in self.partition.controls}
        received = {key: shared[key] for key in self.partition.shared}
        return Ground(self._net, parameters, there(received), there(control), there(start.memory), share)

    def _corrected_epochs(
        self, split: Split, ground: Ground, step: Step, stop: Callable[[], bool]
    ) -> tuple[Answers, list[float], Outcome]:
        correction = self._correction.begin(ground)
        try:
            seen, losses = self._epochs(split, correction, step, stop, self._experiment.training)
            return seen, losses, correction.finish()
        finally:
            correction.close()
            self._net.requires_grad_(True)

    def _epochs(
        self, split: Split, correction: LocalRound, step: Step, stop: Callable[[], bool], settings: TrainingSettings
    ) -> tuple[Answers, list[float]]:
        optimiser = RoundOptimiser(self._net, settings)
        losses: list[float] = []
        logits_seen: list[torch.Tensor] = []
        labels_seen: list[torch.Tensor] = []
        stretches = settings.resolved_stretches()
        epochs = [stretch for stretch in stretches for _ in range(stretch.epochs)]
        for epoch, stretch in enumerate(epochs):
            self._only(stretch)
            purpose = (self._experiment.seed, self._data.name, step.phase, step.round, epoch)
            batches = list(self._batches(len(split.labels), purpose))
            logits_seen, labels_seen = [], []
            for number, samples in enumerate(batches):
                if stop():
                    raise StoppedError(f"the run was aborted in {step.name}.")
                images = augment(split.images[samples], samples, self._experiment.augment, (*purpose, "augment"))
                batch = Batch(self._to_device(images), split.labels[samples].to(self._device))
                clock = Clock(step.round, step.rounds, epoch, len(epochs), number, len(batches))
                with torch.autocast(self._device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                    loss, logits = self._objective.loss(self._net, batch, clock)
                    penalty = correction.penalty(batch.images)
                value = loss.item()
                if not math.isfinite(value):
                    raise TrainingError(
                        f"the loss became {value} in {step.name}, epoch {epoch}, step {number}: "
                        "lower training.learning_rate; nothing of this round is kept."
                    )
                optimiser.torch.zero_grad(set_to_none=True)
                total = loss if penalty is None else loss + penalty
                total.backward()  # type: ignore[no-untyped-call]
                rates = optimiser.at(clock)
                correction.adjust(rates)
                optimiser.clip()
                optimiser.torch.step()
                correction.stepped(rates)
                losses.append(value)
                logits_seen.append(logits.detach())
                labels_seen.append(batch.labels)
        return Answers(torch.cat(logits_seen).float().cpu(), torch.cat(labels_seen).cpu()), losses

    def _only(self, stretch: StretchSettings) -> None:
        """Let a part of the network train and hold the rest still."""
        for name, part in self._net.named_children():
            trains = stretch.train == "all" or (stretch.train == "encoder") == (name == "encoder")
            part.train(trains)
            part.requires_grad_(trains)

    def _batches(self, images: int, purpose: tuple[int | str, ...]) -> Iterator[np.ndarray]:
        size = self._experiment.training.batch_size
        order = generator(*purpose, "order").permutation(images)
        for begin in range(0, images, size):
            samples = order[begin : begin + size]
            # A batch of one has no variance for BatchNorm, so it is left out even when drop_last is off.
            if len(samples) == size or (not self._experiment.training.drop_last and len(samples) > 1):
                yield samples

    def _theta(self, online: Answers, start: Snapshot) -> Theta:
        settings = self._experiment.theta
        seen = online
        if settings.source != "train_online":
            seen = self._pass(self._data.split("train" if settings.source == "train_clean" else "val"))
        answer = ESTIMATORS[self._experiment.evaluation.estimator].answer(seen.logits)
        wrong = (seen.logits.argmax(1) != seen.labels).numpy()
        previous = start.record.get("theta", {}).get("value")
        uncertainty = answer.uncertainty
        if settings.reference_grades is not None:
            uncertainty = as_if_graded(uncertainty, self._data.scheme.num_classes, settings.reference_grades)
        return youden_theta(uncertainty, wrong, settings, previous)

    def _pass(self, split: Split) -> Answers:
        self._net.eval()
        logits: list[torch.Tensor] = []
        with torch.inference_mode():
            for images in torch.split(split.images, _EVALUATION_BATCH):
                logits.append(self._net(self._to_device(images.float().div_(255))).float().cpu())
        return Answers(torch.cat(logits), split.labels)

    def _to_device(self, images: torch.Tensor) -> torch.Tensor:
        layout = torch.channels_last if self._experiment.training.channels_last else torch.contiguous_format
        return images.to(device=self._device, memory_format=layout)


def _home(tensor: torch.Tensor) -> torch.Tensor:
    # One copy even where the memory is channels_last, which `contiguous` would copy a second time.
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
