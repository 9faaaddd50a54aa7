"""How far a run is, as the server knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedretina.settings.plan import Step


class Progress(NamedTuple):
    """The running step of a run, and which sites have answered it.

    Attributes:
        run: Name of the run.
        done: Number of steps that are done.
        steps: Number of steps in total.
        trainings: Number of training steps that are not done.
        step: The step that runs or comes next; None when the run is complete.
        attempt: Which attempt at the step runs, from 0; -1 between two steps.
        asked: Sites that the running step asks.
        answered: Sites whose answer was accepted.
        refused: Sites whose answer does not count, with the reason, a sentence that may leave a site.
    """

    run: str
    done: int
    steps: int
    trainings: int
    step: Step | None
    attempt: int
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    refused: Mapping[str, str]
