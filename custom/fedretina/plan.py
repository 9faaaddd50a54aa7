"""What a run does, step by step: rounds of its phases, one validation, tuning and calibration if any, one finalise."""

from __future__ import annotations

from typing import NamedTuple

from fedretina.errors import RefusedError
from fedretina.exchange.payload import Task
from fedretina.experiment import Experiment

PREPARE = "prepare"
VALIDATE = "validate"
TUNE = "tune"
CALIBRATE = "calibrate"
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
        """List the steps of an experiment, `prepare`, `tune` and `calibrate` only where it asks for them."""
        listed: list[tuple[Task, str, int, int]] = []
        listed += [("prepare", PREPARE, 0, 1)] if experiment.aggregation.personal else []
        listed += [
            (phase.task, phase.name, number, phase.rounds)
            for phase in experiment.phases
            for number in range(phase.rounds)
        ]
        listed += [("validate", VALIDATE, 0, 1)] if experiment.supervised else []
        listed += [("tune", TUNE, 0, 1)] if experiment.tune.epochs else []
        listed += [("calibrate", CALIBRATE, 0, 1)] if experiment.network.calibrator else []
        listed += [("finalise", FINALISE, 0, 1)]
        return cls(Step(number, *step) for number, step in enumerate(listed))

    @property
    def training(self) -> range:
        """Numbers of the steps that train with labels; they follow each other, and there may be none."""
        return self._stretch("train")

    @property
    def learning(self) -> range:
        """Numbers of all steps that give a model, with labels or without; they follow each other."""
        return self._stretch("pretrain", "train")

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
