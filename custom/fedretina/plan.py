"""What a run does, step by step: rounds of its phases, one validation, tuning and calibration if any, one finalise."""

from __future__ import annotations

from typing import NamedTuple

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
    """All steps of a run in order."""

    __slots__ = ()

    @classmethod
    def of(cls, experiment: Experiment) -> Plan:
        """List the steps of an experiment, `prepare`, `tune` and `calibrate` only where it asks for them."""
        listed: list[tuple[Task, str, int, int]] = []
        listed += [("prepare", PREPARE, 0, 1)] if experiment.aggregation.personal else []
        listed += [
            ("train", phase.name, number, phase.rounds) for phase in experiment.phases for number in range(phase.rounds)
        ]
        listed += [("validate", VALIDATE, 0, 1)]
        listed += [("tune", TUNE, 0, 1)] if experiment.tune.epochs else []
        listed += [("calibrate", CALIBRATE, 0, 1)] if experiment.network.calibrator else []
        listed += [("finalise", FINALISE, 0, 1)]
        return cls(Step(number, *step) for number, step in enumerate(listed))

    @property
    def training(self) -> range:
        """Numbers of the training steps; they follow each other."""
        numbers = [step.number for step in self if step.task == "train"]
        return range(numbers[0], numbers[-1] + 1)

    def find(self, phase: str, number: int) -> Step | None:
        """Return the step of a phase's round, or None."""
        return next((step for step in self if step.phase == phase and step.round == number), None)
