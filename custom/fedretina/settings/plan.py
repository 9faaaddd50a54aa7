"""What a run does: its phases with settings of their own, and the steps that follow from them, one after the other."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, model_validator

from fedretina.errors import RefusedError
from fedretina.settings.aggregation import ChoiceSettings
from fedretina.settings.choice import ReadSettings
from fedretina.settings.contrastive import ContrastiveSettings
from fedretina.settings.exchange import ExchangeSettings
from fedretina.settings.images import AugmentSettings, TwoViewSettings
from fedretina.settings.network import HeadSettings
from fedretina.settings.scalars import Task
from fedretina.settings.sums import SumsSettings
from fedretina.settings.training import TrainingSettings

if TYPE_CHECKING:
    from fedretina.settings.experiment import Experiment

ROUNDS_BACK = 3
"""By how many of its last rounds a run can go back: the server keeps their models, each site its own part for them.
Beyond that there is the run's first step, which needs nothing."""


class RestartSettings(BaseModel):
    """Where a run starts again; `fedretina resume RUN --from STEP` writes it.

    Attributes:
        step: Name of the step, such as `train-0001`: it is done again, and all after it. What came before stays.
        mark: Tells one going back from another: server and site do each once, however often the job is started.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    step: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    mark: str = Field(pattern=r"^[a-z0-9]{4,32}$")


RUN_KEY = "fedretina_run"
"""Entry of a job's `meta.json` that tells FLARE's list of jobs which run it belongs to."""


def new_run_name(experiment: Experiment) -> str:
    """The experiment's name, the time (UTC) and four random digits, such as `feduaa-20261121-084047-e50c`."""
    return f"{experiment.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


_LAID_OVER = ("training", "augment")
_CHOOSES = ("name", "method", "estimator")
"""Settings that choose a method: those beside it are the method's own."""
_CHOOSES_IN: Mapping[str, tuple[str, ...]] = {"images": ("modality",), "contrast": ("layout",)}
"""Those of other names, which are plain settings elsewhere, by where they choose."""
_READ: Mapping[str, type[ReadSettings]] = {
    "training": TrainingSettings,
    "head": HeadSettings,
    "exchange": ExchangeSettings,
    "choice": ChoiceSettings,
}
"""Settings of which some are read under a choice beside them alone."""


class PhaseSettings(BaseModel):
    """A stretch of federated rounds.

    Attributes:
        name: The phase's name, part of every stamp and file.
        rounds: How many rounds it has in total, those before a resume among them. They are settled when the run
            begins: a run that is resumed with another number is refused, like any other setting that differs.
        contrastive: The label-free objective of a phase that pre-trains the encoder; None for one that trains with
            labels.
        views: How the two views of an image are drawn in a label-free phase.
        weights: How the server weighs the sites in a label-free phase, which has no theta: all alike, as the OCT paper
            does, or by their images.
        label_share: Share of the labels that a phase with labels uses, whole patients of each site, in (0, 1]. It is
            for asking what pre-training is worth where labels are few.
        sums: Heads from sums, in one round without training; None for a phase that trains. It is a run's only phase
            with labels: before it there may be phases without, and then the heads stand on the encoder that they gave.
        training: Local training in this phase; a job's settings here are laid over the run's own `training`.
        augment: Random transforms in this phase, likewise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(default="train", pattern=r"^[a-z][a-z0-9_]{0,29}$")
    rounds: int = Field(default=5, ge=1, le=10_000)
    contrastive: SerializeAsAny[ContrastiveSettings] | None = None
    views: TwoViewSettings = TwoViewSettings()
    weights: Literal["uniform", "samples"] = "uniform"
    label_share: float = Field(default=1.0, gt=0, le=1)
    sums: SumsSettings | None = None
    training: TrainingSettings | None = None
    augment: AugmentSettings | None = None

    @model_validator(mode="after")
    def _labels_are_used_or_not(self) -> Self:
        if self.contrastive is not None and self.label_share < 1:
            raise ValueError(f"label_share is {self.label_share:g}, but phase {self.name!r} uses no labels: drop it.")
        if self.contrastive is not None and self.training is not None and self.training.stretches:
            raise ValueError(f"phase {self.name!r} trains the encoder alone: give training.epochs, no stretches.")
        if self.contrastive is not None and self.augment is not None:
            raise ValueError(
                f"phase {self.name!r} trains without labels and does not read augment: say in views how its two views "
                "of an image are drawn."
            )
        unread = [name for name in ("views", "weights") if self._is_set(name)]
        if self.contrastive is None and self.sums is None and unread:
            raise ValueError(
                f"phase {self.name!r} trains with labels and does not read {' and '.join(unread)}, a phase with "
                "contrastive alone does: leave it out."
            )
        return self

    @model_validator(mode="after")
    def _sums_are_sent_once(self) -> Self:
        if self.sums is None:
            return self
        unread = [
            name
            for name in ("contrastive", "training", "augment", "label_share", "views", "weights")
            if self._is_set(name)
        ]
        if unread:
            raise ValueError(
                f"phase {self.name!r} sums features and does not read {' and '.join(unread)}: leave it out, or sums."
            )
        if self.rounds != 1:
            raise ValueError(f"phase {self.name!r} sums features, which takes 1 round, not {self.rounds}.")
        return self

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    @property
    def task(self) -> Task:
        """What the sites do in each of its rounds."""
        if self.sums is not None:
            return "sums"
        return "train" if self.contrastive is None else "pretrain"


def resolved_phases(settings: Mapping[str, Any], row: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The phases of a job: a phase is filled from the row's phase of its name, its settings from the run's.

    Args:
        settings: The job's settings, laid over its row already.
        row: The phases of the row.

    Returns:
        Settings of each phase for `PhaseSettings`; what is no mapping is left for it to refuse.
    """
    named = {str(phase.get("name", "train")): phase for phase in row}
    found: list[Any] = []
    for phase in settings["phases"]:
        if not isinstance(phase, Mapping):
            found.append(phase)
            continue
        full = merged(named.get(str(phase.get("name", "train")), {}), phase)
        for name in _LAID_OVER:
            if isinstance(full.get(name), Mapping) and isinstance(settings.get(name, {}), Mapping):
                full[name] = merged({name: settings.get(name, {})}, {name: full[name]})[name]
        found.append(full)
    return found


def without_settings(phases: Sequence[Mapping[str, Any]], fixed: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Phases without those of their own settings that are fixed for the whole run, so that the run's hold in them.

    Args:
        phases: The phases of a row.
        fixed: Settings of the run, such as a recipe's.
    """
    found = []
    for phase in phases:
        left: dict[str, Any] = {}
        for name in _LAID_OVER:
            if isinstance(phase.get(name), Mapping) and name in fixed:
                own = _READ[name].still_read(phase[name], fixed[name]) if name in _READ else phase[name]
                left[name] = {key: value for key, value in own.items() if key not in fixed[name]}
        found.append({**phase, **left})
    return tuple(found)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with others laid over them.

    Where the upper ones choose another method than the lower ones (`settings.choice`), nothing of the lower method's
    settings is left, and of plain settings none that the upper choice does not read.
    """
    joined = dict(base)
    for key, value in over.items():
        low, high, chooses = joined.get(key), value, _CHOOSES_IN.get(key, _CHOOSES)
        # A method's name alone stands for the mapping that holds it.
        if isinstance(low, str) and isinstance(high, Mapping):
            low = {chooses[0]: low}
        if isinstance(high, str) and isinstance(low, Mapping) and (chooses[0] in low or key in _CHOOSES_IN):
            high = {chooses[0]: high}
        if isinstance(low, Mapping) and isinstance(high, Mapping):
            low = _READ[key].still_read(low, high) if key in _READ else low
            same = all(high[name] == low.get(name, high[name]) for name in chooses if name in high)
            joined[key] = merged(low, high) if same else high
        else:
            joined[key] = high
    return joined


PREPARE = "prepare"

VALIDATE = "validate"

TUNE = "tune"

CALIBRATE = "calibrate"

CURVE = "curve"

FINALISE = "finalise"


class Step(NamedTuple):
    """One exchange between the server and all sites.

    Attributes:
        number: Position in the run, from 0; a training step's number also names the model after it.
        task: What the sites do.
        phase: Phase of the stamp and of file names.
        round: Round within the phase, from 0.
        rounds: Rounds of the phase in total.
    """

    number: int
    task: Task
    phase: str
    round: int
    rounds: int

    @property
    def name(self) -> str:
        """Name of the step in files and logs, such as `train-0003`."""
        return f"{self.phase}-{self.round:04d}"


class Plan(tuple[Step, ...]):
    """All steps of a run in order.

    A phase without labels comes before those with labels, and a run of such phases alone measures nothing: it has no
    validation, and its last model is its result.
    """

    __slots__ = ()

    @classmethod
    def of(cls, experiment: Experiment) -> Plan:
        """List the steps of an experiment, `prepare`, `tune`, `calibrate` and `curve` only where it asks for them."""
        listed: list[tuple[Task, str, int, int]] = []
        listed += [("prepare", PREPARE, 0, 1)] if experiment.aggregation.personal else []
        listed += [
            (phase.task, phase.name, number, phase.rounds)
            for phase in experiment.phases
            for number in range(phase.rounds)
        ]
        listed += [("validate", VALIDATE, 0, 1)] if experiment.supervised else []
        listed += [("tune", TUNE, 0, 1)] if experiment.tune.at_end else []
        listed += [("calibrate", CALIBRATE, 0, 1)] if experiment.network.calibrator else []
        listed += [("curve", CURVE, 0, 1)] if experiment.referral_curve else []
        listed += [("finalise", FINALISE, 0, 1)]
        return cls(Step(number, *step) for number, step in enumerate(listed))

    @property
    def training(self) -> range:
        """Numbers of the steps that learn from labels; they follow each other, and there may be none."""
        return self._stretch("train", "sums")

    @property
    def learning(self) -> range:
        """Numbers of all steps that give a model, with labels or without; they follow each other."""
        return self._stretch("pretrain", "train", "sums")

    def _stretch(self, *tasks: Task) -> range:
        numbers = [step.number for step in self if step.task in tasks]
        return range(numbers[0], numbers[-1] + 1) if numbers else range(0)

    def find(self, phase: str, number: int) -> Step | None:
        """Return the step of a phase's round, or None."""
        return next((step for step in self if step.phase == phase and step.round == number), None)

    def named(self, name: str) -> Step:
        """Return the step of a name such as `train-0003`.

        Raises:
            RefusedError: There is none; it lists those that there are.
        """
        found = next((step for step in self if step.name == name), None)
        if found is None:
            phases = {step.phase: [one.name for one in self if one.phase == step.phase] for step in self}
            listed = [names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" for names in phases.values()]
            raise RefusedError(f"{name[:100]!r} is no step of this run: its steps are {', '.join(listed)}.")
        return found
