"""One site as the server sees it: an order and tensors come in, tensors and scalars go out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from fedretina.data.site_data import SiteData
from fedretina.errors import RefusedError, SettingsError, TrainingError
from fedretina.evaluation.evaluate import Evaluation
from fedretina.exchange.payload import Order, Payload, Tensors
from fedretina.exchange.sealing import NO_KEYS, Sealer
from fedretina.experiment import Experiment
from fedretina.local.encoder_ending import finalise_encoder
from fedretina.local.finalise import Ending, finalise
from fedretina.local.history import History
from fedretina.local.pretrainer import Pretrainer
from fedretina.local.site_state import SiteState
from fedretina.local.snapshot import Snapshot
from fedretina.local.trainer import LocalTrainer
from fedretina.plan import Plan

_NOTED = ("theta", "loss", "accuracy", "contrast_loss")
_log = logging.getLogger(__name__)


class Site:
    """Answers the server's orders for one run.

    Args:
        experiment: The run's settings.
        data: The site's data.
        folder: The site's own folder of this run.
        sealer: The sites' half of the keys, where a part of the model travels encrypted.

    Raises:
        SettingsError: The run encrypts, and there is no sealer.
    """

    def __init__(self, experiment: Experiment, data: SiteData, folder: Path, sealer: Sealer | None = None) -> None:
        self._experiment = experiment
        self._data = data
        self._folder = folder
        self._plan = Plan.of(experiment)
        self.trainer = LocalTrainer(experiment, data)
        self._pretrainer = Pretrainer(experiment, data, self.trainer.model)
        self.digest = experiment.digest(self.trainer.partition)
        self._sealer = sealer
        if self.trainer.partition.sealed and sealer is None:
            raise SettingsError(NO_KEYS)

    def answer(self, order: Order, tensors: Tensors, stop: Callable[[], bool] = lambda: False) -> Payload:
        """Do what the server asks and say what may leave.

        Sent twice, an order gives the same answer twice.

        Args:
            order: The server's order.
            tensors: The aggregate that came with it.
            stop: Asked before each batch of training; True ends the work.

        Raises:
            StoppedError: `stop` said so.
            RefusedError: The order belongs to other settings, another version or no step of this run.
            StateError: The site's state is missing, damaged or not writable.
            TrainingError: The site cannot take part in this step; nothing of it is kept.
        """
        order.stamp.require_digest(self.digest)
        step = self._plan.find(order.stamp.phase, order.stamp.round)
        if step is None or step.task != order.task:
            raise RefusedError(f"{order.task} in {order.stamp.phase} round {order.stamp.round} is no step of this run.")
        _log.info("%s: %s, attempt %d", self._data.name, step.name, order.stamp.attempt)
        tensors = self._opened(tensors) if order.task not in ("prepare", "pretrain") else tensors
        state = SiteState(self._folder, self.digest, lambda index: self._plan[index].name)
        start = state.open(order.accepted, order.best)
        if order.task == "prepare":
            images = float(self._data.counts["train"])
            return Payload(self.trainer.statistics(tensors), {"images": images}, order.stamp)
        history = History(self._folder / "history.json")
        if order.accepted is not None and start is not None:
            own = {name: start.record[name] for name in _NOTED if name in start.record}
            history.note(self._plan[order.accepted], **own, weight=order.weight)
            if self._plan[order.accepted].phase != step.phase:
                start = start._replace(memory={})  # of another objective: variates, drifts, queues begin anew
        if order.task == "pretrain":
            found = self._pretrainer.run(tensors, start or self.trainer.initial(), step, stop, order.share)
            state.stage(step.number, found.snapshot)
            return Payload(found.tensors, {"images": float(found.images), "contrast_loss": found.loss}, order.stamp)
        if order.task == "calibrate":
            return Payload(self.trainer.moments(tensors, self._kept(order, state).tensors), {}, order.stamp)
        if order.task == "finalise" and not self._experiment.supervised:
            return Payload({}, self._finalise_encoder(order, state, tensors), order.stamp)
        if order.task == "finalise":
            return Payload({}, self._finalise(order, state, tensors), order.stamp)
        if order.task == "tune":
            tuned = self.trainer.tune(tensors, self._kept(order, state), step, stop)
            state.stage(step.number, tuned)
            return Payload({}, _validation(self._validate(tuned, tensors)), order.stamp)
        trained = order.accepted is not None and self._plan[order.accepted].task != "pretrain"
        received = self._validate(start if trained else None, tensors)
        if received is not None:
            history.note(self._plan[step.number - 1], validation=received._asdict())
        if order.task == "validate":
            return Payload({}, _validation(received), order.stamp)
        update = self.trainer.train(tensors, start or self.trainer.initial(), step, stop, order.share)
        state.stage(step.number, update.snapshot)
        scalars = {"theta": update.theta.value, "images": float(update.images), **_validation(received)}
        return Payload(self._sealed(update.tensors), scalars, order.stamp)

    def _opened(self, tensors: Tensors) -> Tensors:
        """The aggregate in the clear; before the first round the seed gives what is sealed later."""
        parts = self.trainer.partition
        if self._sealer is None:
            return tensors
        opened = {
            key: self._sealer.open(key, tensors[key], parts.shapes[key], parts.dtypes[key])
            if key in tensors
            else self.trainer.sealed_start[key]
            for key in parts.sealed
        }
        return {**tensors, **opened}

    def _sealed(self, tensors: Tensors) -> Tensors:
        """What leaves, with its sealed part encrypted anew: sent twice, it is equal inside and not in its bytes."""
        if self._sealer is None:
            return tensors
        return {**tensors, **{key: self._sealer.seal(tensors[key]) for key in self.trainer.partition.sealed}}

    def _validate(self, start: Snapshot | None, tensors: Tensors) -> Evaluation | None:
        # A site whose personal part never trained has no model yet: its figure would only blur the choice of a round.
        if start is None:
            return None
        return self.trainer.evaluate(self.trainer.answers(tensors, start.tensors, self._data.split("val")))

    def _kept(self, order: Order, state: SiteState) -> Snapshot:
        """The personal part that belongs to the chosen model; after tuning that is the whole model."""
        if order.best is None:
            raise RefusedError("the server chose no round to end with.")
        tuned = order.accepted is not None and self._plan[order.accepted].task == "tune"
        kept = state.kept(order.accepted if tuned and order.accepted is not None else order.best)
        if kept is None or "contrast_loss" in kept.record:  # a head that never saw a label
            raise TrainingError(
                f"no update of this site with labels was accepted up to the chosen {self._plan[order.best].name}, "
                "so it has no personal part for that model."
            )
        return kept

    def _finalise(self, order: Order, state: SiteState, tensors: Tensors) -> dict[str, float]:
        if order.best is None:
            raise RefusedError("the server chose no round to finalise.")
        kept = self._kept(order, state)
        chosen = self._plan[order.best]
        run = order.stamp.run
        calibrator = {key: tensors[key] for key in self.trainer.partition.calibrator}
        shared = {key: tensor for key, tensor in tensors.items() if key not in calibrator}
        whole = kept._replace(tensors={**kept.tensors, **calibrator})
        return finalise(Ending(run, self._folder, self._experiment, self._data, self.trainer, chosen, shared, whole))

    def _finalise_encoder(self, order: Order, state: SiteState, tensors: Tensors) -> dict[str, float]:
        kept = None if order.accepted is None else state.kept(order.accepted)
        if kept is None:
            raise TrainingError("no update of this site was accepted, so it has no part of this encoder.")
        return finalise_encoder(order.stamp.run, self._folder, self._experiment, self._data, {**tensors, **kept.tensors})


def _validation(figures: Evaluation | None) -> dict[str, float]:
    if figures is None:
        return {}
    found = {"val_auc": figures.auc, "val_accuracy": figures.accuracy}
    return {name: float(value) for name, value in found.items() if value is not None}
