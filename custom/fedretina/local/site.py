"""One site as the server sees it: an order and tensors come in, tensors and scalars go out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from fedretina.codecs.encoding import Base, Ways, encoding_of
from fedretina.corrections.gradients import RATIO
from fedretina.data.site_data import SiteData
from fedretina.errors import DivergedError, RefusedError, SettingsError, TrainingError
from fedretina.evaluation.figures import Evaluation
from fedretina.exchange.encryption import NO_KEYS, HeadCipher
from fedretina.exchange.partition import Partition, absurd
from fedretina.exchange.payload import Order, Payload, Tensors, tensors_digest
from fedretina.local.finalise import Ending, curve_counts, finalise, finalise_encoder
from fedretina.local.heads_from_sums import HeadsFromSums, SiteNoise, folded, packed, parted, unpacked
from fedretina.local.pretrainer import Pretrainer
from fedretina.local.site_state import SiteState, Snapshot
from fedretina.local.trainer import LocalTrainer
from fedretina.local.twin import Twin
from fedretina.local.verdict import Contestant, Splits, twin_model
from fedretina.settings.exchange import Kind
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan, Step
from fedretina.settings.scalars import Task

_NOTED = ("theta", "loss", "accuracy", "contrast_loss", RATIO)
_HELD, _ERROR = "codec:held:", "codec:error:"  # in a snapshot's memory: what came down, and what going up lost
_LONG = 10.0  # a model this many times as long as the one it began as was hardly trained to it
_log = logging.getLogger(__name__)
Reply = tuple[Tensors, dict[str, float]]
"""Tensors and scalars that may leave."""


class Validation(NamedTuple):
    """How a model does on the validation split.

    Attributes:
        plain: All figures but the next.
        supported: Mean AUC over the grades with support, by which rounds are chosen; None where none has it.
    """

    plain: Evaluation
    supported: float | None


class _Request(NamedTuple):
    """An order with all that is needed to do it; `lost` is what encoding the site's last update lost."""

    order: Order
    step: Step
    tensors: Tensors
    state: SiteState
    start: Snapshot | None
    stop: Callable[[], bool]
    lost: Tensors = MappingProxyType({})


class Site:
    """Answers the server's orders for one run.

    Args:
        experiment: The run's settings.
        data: The site's data.
        folder: The site's own folder of this run.
        cipher: The sites' half of the keys, where a part of the model travels encrypted.
        noise: What the site adds to sums before they leave, encrypted or not; None adds nothing.
        small_grades: Whether encrypted sums hold grades of fewer patients than `data.min_count` too.

    Raises:
        SettingsError: The run encrypts, and there is no cipher.
    """

    def __init__(
        self,
        experiment: Experiment,
        data: SiteData,
        folder: Path,
        cipher: HeadCipher | None = None,
        noise: SiteNoise | None = None,
        small_grades: bool = False,
    ) -> None:
        self._experiment = experiment
        self._data = data
        self._folder = folder
        self._plan = Plan.of(experiment)
        self.trainer = LocalTrainer(experiment, data)
        self._pretrainer = Pretrainer(experiment, data, self.trainer.model)
        self.digest = experiment.digest(self.trainer.partition)
        parts = self.trainer.partition
        state = self.trainer.model.net.state_dict()  # as the seed gives it: nothing has been loaded
        self._encoding = encoding_of(experiment, parts)
        self._begun = _lengths({key: state[key] for key in parts.parameters}, parts)
        self._cipher = cipher
        small = small_grades and cipher is not None
        self._heads = None if experiment.sums is None else HeadsFromSums(experiment, data, noise, small)
        self._twin = Twin(experiment, data, folder / "twin", Site) if experiment.verdict == "twin" else None
        self._done: Mapping[Task, Callable[[_Request], Reply]] = {
            "pretrain": self._pretrain,
            "train": self._train,
            "sums": self._sums,
            "validate": self._validated,
            "tune": self._tune,
            "calibrate": self._calibrate,
            "curve": self._curve,
            "finalise": self._finalise,
        }
        always = experiment.sums is not None and experiment.sums.encrypt == "always"
        if (self.trainer.partition.sealed or always) and cipher is None:
            raise SettingsError(NO_KEYS)

    def handle(self, order: Order, tensors: Tensors, stop: Callable[[], bool] = lambda: False) -> Payload:
        """Do what the server asks and say what may leave.

        Sent twice, an order gives the same answer twice; what of it is encrypted is equal inside, and not in its bytes.

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
        state = SiteState(self._folder, self.digest, lambda index: self._plan[index].name, self._data.listed)
        self._restart(state, order.accepted)
        request = _Request(order, step, tensors, state, state.open(order.accepted, order.best), stop)
        state.require_data(step.number, accept=self._data.changes == "accept")
        if order.task == "prepare":
            self._require_sane(request, tensors)
            leaving, scalars = self._statistics(tensors), {"images": float(self._data.counts["train"])}
        else:
            leaving, scalars = self._done[order.task](self._since(request))
        state.keep()
        return self._sealed(Payload(leaving, scalars, order.stamp))

    def _statistics(self, tensors: Tensors) -> Tensors:
        if not self._data.may_be_told("train"):
            _log.warning(
                "%s: fewer patients stand behind the training images than data.min_count, %d, so no statistics of "
                "these images leave: the site gets the plain mean of the sites' models, and the others' models are "
                "mixed without its own.",
                self._data.name,
                self._data.min_count,
            )
            return {}
        return self.trainer.statistics(tensors)

    def _restart(self, state: SiteState, accepted: int | None) -> None:
        """Go back to where the job's settings say that the run starts again, unless that was done before."""
        restart = self._experiment.restart
        if restart is not None and restart.mark not in state.restarts:
            state.go_back(self._plan.named(restart.step).number, restart.mark, accepted)
            _log.warning("%s: the run starts again from %s", self._data.name, restart.step)

    def _since(self, request: _Request) -> _Request:
        """Note how the last accepted round went, and open what came encrypted."""
        request = self._decoded(request)
        start, order = request.start, request.order
        if order.accepted is not None and start is not None:
            own = {name: start.record[name] for name in _NOTED if name in start.record}
            request.state.history.note(self._plan[order.accepted], **own, weight=order.weight)
            if self._plan[order.accepted].task != request.step.task:
                start = start._replace(memory={})  # of another objective: variates, drifts, queues begin anew
                request = request._replace(lost={})
        tensors = request.tensors if order.task == "pretrain" else self._opened(request.tensors)
        self._require_sane(request, tensors)
        return request._replace(start=start, tensors=tensors)

    def _decoded(self, request: _Request) -> _Request:
        """The order as if it had come in float32, and what the codec keeps apart from what the trainer does.

        Raises:
            TrainingError: It is the change of a model that the site does not hold; the next order brings one whole.
        """
        if self._encoding is None:
            return request
        kept = {} if request.start is None else request.start.memory
        held, lost = (
            {name.removeprefix(mine): tensor for name, tensor in kept.items() if name.startswith(mine)}
            for mine in (_HELD, _ERROR)
        )
        try:
            for key in sorted(set(request.tensors) & set(self.trainer.partition.travelling)):
                self._encoding.require(key, request.tensors[key], whole=True)
            tensors = self._encoding.decode(request.tensors, Base(held)).tensors
        except RefusedError as error:
            raise TrainingError(f"the model sent for {request.step.name} cannot be taken: {error}") from error
        rest = {name: tensor for name, tensor in kept.items() if not name.startswith((_HELD, _ERROR))}
        start = None if request.start is None else request.start._replace(memory=rest)
        return request._replace(tensors=tensors, start=start, lost=lost)

    def _encoded(self, request: _Request, tensors: Tensors, snapshot: Snapshot, ways: Ways) -> tuple[Tensors, Snapshot]:
        """What leaves, and what stays with what the codec needs in the next round: it counts with the update."""
        if self._encoding is None:
            return tensors, snapshot
        step = request.step
        try:
            made = self._encoding.encode(tensors, Base.up(request.tensors), request.lost, ways)
        except RefusedError as error:
            raise TrainingError(f"{step.name}: {error}") from error
        memory = {
            **snapshot.memory,
            **{f"{_HELD}{key}": request.tensors[key] for key in sorted(self._encoding.kept & set(request.tensors))},
            **{f"{_ERROR}{key}": error for key, error in made.errors.items()},
        }
        return {**tensors, **made.frames}, snapshot._replace(memory=memory)

    def _joined(self, tensors: Tensors, kept: Snapshot) -> tuple[Tensors, Snapshot]:
        """What came and what the site kept for it as parts of a network: a total of sums becomes a head."""
        if self._heads is None:
            return tensors, kept
        total, encoder = parted(tensors)
        found = self._heads.answer(unpacked(total), kept, encoder)
        return encoder, Snapshot(folded(self.trainer.model.start, found), {**kept.record, "sums": dict(found.record)})

    def _require_sane(self, request: _Request, tensors: Tensors) -> None:
        """Refuse to load a model that no training can go on from, before it spoils what the site has.

        Raises:
            TrainingError: It holds a value that is not finite or absurdly large, or a negative variance.
        """
        found = absurd(tensors, self.trainer.partition.kinds)
        if found is not None:
            raise TrainingError(
                f"the model sent for {request.step.name} holds {found}: {self._go_back(request)}; nothing of this step "
                "is kept."
            )

    def _blame(self, request: _Request, error: DivergedError) -> NoReturn:
        """Raise what a loss that is not finite comes from, as far as the site can tell.

        Raises:
            TrainingError: The error itself, or where the model that was sent had grown far beyond its beginning, that.
        """
        parts = self.trainer.partition
        sent = _lengths({key: request.tensors[key] for key in parts.parameters if key in request.tensors}, parts)
        longer = {kind: sent[kind] / begun for kind, begun in self._begun.items() if kind in sent and begun > 0}
        kind = max(longer, key=longer.__getitem__, default=None)
        if kind is None or longer[kind] <= _LONG:
            raise error
        told = TrainingError(
            f"the loss is not finite in {request.step.name}, and the model that was sent is {longer[kind]:.3g} times "
            f"as long ({kind} tensors) as the one that the run began with: {self._go_back(request)}; where the rounds "
            "themselves grew to that, lower training.learning_rate. Nothing of this round is kept."
        )
        for note in error.notes:
            told.add_note(note)
        raise told from error

    @staticmethod
    def _go_back(request: _Request) -> str:
        return (
            "an earlier round was spoilt, and the consortium can go back with "
            f"`fedretina resume {request.order.stamp.run} --from STEP`"
        )

    def _pretrain(self, request: _Request) -> Reply:
        start = request.start or self.trainer.initial()
        try:
            found = self._pretrainer.run(request.tensors, start, request.step, request.stop, request.order.share)
        except DivergedError as error:
            self._blame(request, error)
        leaving, snapshot = self._encoded(request, found.tensors, found.snapshot, found.ways)
        request.state.stage(request.step.number, snapshot)
        self._follow(request)
        scalars = {"images": float(found.images), **self._people(found.patients), "contrast_loss": found.loss}
        return leaving, scalars

    def _train(self, request: _Request) -> Reply:
        received = self._received(request)
        start = request.start or self.trainer.initial(request.tensors, request.step)
        try:
            update = self.trainer.train(request.tensors, start, request.step, request.stop, request.order.share)
        except DivergedError as error:
            self._blame(request, error)
        leaving, snapshot = self._encoded(request, update.tensors, update.snapshot, update.ways)
        request.state.stage(request.step.number, snapshot)
        self._follow(request)
        scalars = {"theta": update.theta.value, "images": float(update.images), **self._people(update.patients)}
        scalars |= self._figures(received)
        return leaving, scalars

    def _sums(self, request: _Request) -> Reply:
        if self._heads is None:
            raise RefusedError("this run sums nothing.")
        sums, snapshot = self._heads.sums(request.tensors)
        request.state.stage(request.step.number, snapshot)
        return packed(sums), {}

    def _follow(self, request: _Request) -> None:
        if self._twin is not None:
            self._twin.follow(request.step, request.stop)

    def _validated(self, request: _Request) -> Reply:
        return {}, self._figures(self._received(request))

    def _tune(self, request: _Request) -> Reply:
        tuned = self.trainer.tune(request.tensors, self._kept(request.order, request.state), request.step, request.stop)
        request.state.stage(request.step.number, tuned)
        return {}, self._figures(self._validate(tuned, request.tensors))

    def _calibrate(self, request: _Request) -> Reply:
        if not self._data.may_be_told("val"):
            _log.warning(
                "%s: fewer patients stand behind the validation images than data.min_count, %d, so no sums over the "
                "features of these images leave: the site gets the temperatures of the others.",
                self._data.name,
                self._data.min_count,
            )
            return {}, {}
        return self.trainer.moments(request.tensors, self._kept(request.order, request.state).tensors), {}

    def _curve(self, request: _Request) -> Reply:
        return {}, curve_counts(self._ending(request))

    def _finalise(self, request: _Request) -> Reply:
        ends = self._finalise_model if self._experiment.supervised else self._finalise_encoder
        return {}, ends(request)

    def _received(self, request: _Request) -> Validation | None:
        """How the aggregate that came does at home, with what the site kept for it."""
        accepted = request.order.accepted
        trained = accepted is not None and self._plan[accepted].task != "pretrain"
        tensors, start = request.tensors, request.start if trained else None
        if start is not None:
            tensors, start = self._joined(tensors, start)
        found = self._validate(start, tensors)
        if found is not None:
            noted = {**found.plain._asdict(), "auc_supported": found.supported}
            request.state.history.note(self._plan[request.step.number - 1], validation=noted)
        return found

    def _opened(self, tensors: Tensors) -> Tensors:
        """The aggregate in the clear; before the first round the seed gives what is sealed later."""
        parts = self.trainer.partition
        if self._cipher is None:
            return tensors
        opened = {
            key: self._cipher.open(key, tensors[key], parts.shapes[key], parts.dtypes[key])
            if key in tensors
            else self.trainer.model.sealed_start[key]
            for key in parts.sealed
        }
        opened |= {
            key: self._cipher.open(key, tensors[key], parts.shapes[key], parts.dtypes[key])
            for key in parts.sums
            if key in tensors
        }
        return {**tensors, **opened}

    def _sealed(self, answer: Payload) -> Payload:
        """An answer with its sealed part, or its sums, encrypted anew."""
        parts = self.trainer.partition
        closed = [key for key in answer.tensors if key in parts.sealed or key in parts.sums]
        if self._cipher is None or not closed:
            return answer
        sealed = {key: self._cipher.seal(answer.tensors[key]) for key in closed}
        return answer._replace(tensors={**answer.tensors, **sealed}, release=tensors_digest(answer.tensors))

    def _people(self, patients: int) -> dict[str, float]:
        """The patients who stand behind an update, where they are enough to be told."""
        return {"patients": float(patients)} if patients >= self._data.min_count else {}

    def _validate(self, start: Snapshot | None, tensors: Tensors) -> Validation | None:
        # A site whose personal part never trained has no model yet: its figure would only blur the choice of a round.
        if start is None:
            return None
        split = self._data.split("val")
        answers = self.trainer.answers(tensors, start.tensors, split)
        return Validation(self.trainer.evaluate(answers), self.trainer.supported(answers, split.patients))

    def _figures(self, found: Validation | None) -> dict[str, float]:
        """What of the figures on validation may leave: none where they are of too few patients."""
        if found is None or not self._data.may_be_told("val"):
            return {}
        plain = found.plain
        figures = {"val_auc": plain.auc, "val_auc_supported": found.supported, "val_accuracy": plain.accuracy}
        return {name: float(value) for name, value in figures.items() if value is not None}

    def _kept(self, order: Order, state: SiteState) -> Snapshot:
        """The personal part that belongs to the chosen model; after tuning that is the whole model."""
        if order.best is None:
            raise RefusedError("the server chose no round to end with.")
        tuned = order.accepted is not None and self._plan[order.accepted].task == "tune"
        kept = state.kept(order.accepted if tuned and order.accepted is not None else order.best)
        if kept is None or "contrast_loss" in kept.record:  # a head that never saw a label
            if self._heads is not None:
                self._heads.require_told()
            raise TrainingError(
                f"no update of this site was accepted up to the chosen {self._plan[order.best].name}, "
                "so it has no personal part for that model."
            )
        return kept

    def _finalise_model(self, request: _Request) -> dict[str, float]:
        return finalise(self._ending(request))

    def _ending(self, request: _Request) -> Ending:
        """What the run ends with here: the chosen model, as the site has it."""
        order, state, tensors = request.order, request.state, request.tensors
        if order.best is None:
            raise RefusedError("the server chose no round to finalise.")
        kept = self._kept(order, state)
        chosen = self._plan[order.best]
        run = order.stamp.run
        tensors, kept = self._joined(tensors, kept)
        calibrator = {key: tensors[key] for key in self.trainer.partition.calibrator}
        shared = {key: tensor for key, tensor in tensors.items() if key not in calibrator}
        whole = kept._replace(tensors={**kept.tensors, **calibrator})
        changes, history = tuple(state.data_changes), state.history.steps()
        return Ending(
            *(run, self._folder, self._experiment, self._data, self.trainer, chosen, shared, whole),
            data_changes=changes,
            history=history,
            twin=lambda splits: self._ended_twin(splits, request.stop),
            curve=tuple(order.curve),
        )

    def _ended_twin(self, splits: Splits, stop: Callable[[], bool]) -> Contestant | None:
        """The twin's model, trained to its end; None where it is not asked for or could not be trained."""
        if self._twin is None:
            return None
        self._twin.end(stop)
        if not self._twin.complete:
            return None
        return twin_model(self._twin.experiment, self._data, self._twin.folder, splits)

    def _finalise_encoder(self, request: _Request) -> dict[str, float]:
        order, state, tensors = request.order, request.state, request.tensors
        kept = None if order.accepted is None else state.kept(order.accepted)
        if kept is None:
            raise TrainingError("no update of this site was accepted, so it has no part of this encoder.")
        whole, normalisation = self.trainer.encoder_state(tensors, kept.tensors), self.trainer.normalisation
        run, start = order.stamp.run, self.trainer.provenance
        return finalise_encoder(run, self._folder, self._experiment, self._data, whole, normalisation, start)


def _lengths(tensors: Tensors, parts: Partition) -> dict[Kind, float]:
    """Length of the tensors of each kind together."""
    squares: dict[Kind, float] = {}
    for key in sorted(tensors):
        kind = parts.kinds[key]
        squares[kind] = squares.get(kind, 0.0) + float(tensors[key].double().square().sum())
    return {kind: math.sqrt(total) for kind, total in squares.items()}
