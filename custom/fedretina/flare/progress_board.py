"""What the admin side sees of the running step: round, sites, and about how long the training still takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # the admin side reads reports, and does not wait for torch
    from fedretina.aggregation.coordinator import Progress

GROUP = "fedretina"
"""Name under which the report stands in FLARE's statistics of a job."""
_REMEMBERED = 3


class Report(NamedTuple):
    """Names of sites and counts; nothing of a site's data.

    Attributes:
        run: Name of the run.
        done: Number of steps that are done.
        steps: Number of steps in total.
        task: `train` or another task of the plan; empty when the run is complete.
        phase: Phase of the running step.
        round: Round of the phase, from 1.
        rounds: Rounds of the phase in total.
        attempt: Which attempt at the step runs, from 1; 0 between two steps.
        answered: Sites whose answer was accepted.
        waiting: Sites that were asked and have not answered.
        refused: Sites whose answer does not count, with the reason.
        seconds: How long the running step takes already.
        seconds_left: Expected length of the training that is left; None while there is nothing to judge by.
    """

    run: str
    done: int
    steps: int
    task: str
    phase: str
    round: int
    rounds: int
    attempt: int
    answered: list[str]
    waiting: list[str]
    refused: dict[str, str]
    seconds: float
    seconds_left: float | None

    @classmethod
    def read(cls, raw: object) -> Report | None:
        """Take a report from FLARE's statistics; None where the server runs another version or no fedretina job."""
        if not isinstance(raw, Mapping) or set(raw) != set(cls._fields):
            return None
        return cls(**raw)


class ProgressBoard:
    """Notes when the steps of this job begin and end."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._lengths: list[float] = []

    def begin(self) -> None:
        """Note that a step begins."""
        self._began = time.monotonic()

    def end(self, trained: bool) -> None:
        """Note that the running step is done."""
        if trained and self._began is not None:
            self._lengths = [*self._lengths, time.monotonic() - self._began][-_REMEMBERED:]
        self._began = None

    def report(self, progress: Progress) -> Report:
        """What the admin side is told.

        The time left is the mean of the last three training steps of this job times those left; a step that takes
        longer than the mean already counts as about to end.
        """
        step = progress.step
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        left = None
        if step is not None and step.task in ("pretrain", "train") and self._lengths:
            usual = sum(self._lengths) / len(self._lengths)
            left = usual * (progress.trainings - 1) + max(usual - seconds, 0.0)
        told = {*progress.answered, *progress.refused}
        return Report(
            run=progress.run,
            done=progress.done,
            steps=progress.steps,
            task="" if step is None else step.task,
            phase="" if step is None else step.phase,
            round=0 if step is None else step.round + 1,
            rounds=0 if step is None else step.rounds,
            attempt=progress.attempt + 1,
            answered=sorted(progress.answered),
            waiting=sorted(set(progress.asked) - told),
            refused=dict(sorted(progress.refused.items())),
            seconds=round(seconds, 1),
            seconds_left=None if left is None else round(left, 1),
        )
