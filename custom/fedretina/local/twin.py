"""A site's twin of a run: the same row, rounds and epochs on the site's own data, with nothing exchanged.

It goes along with the federation, a round at home for each round in which the site takes part, so that its cost is
spread over the rounds and no order of training takes longer than twice its time; what is left, of rounds that the site
missed or of the choice of a round, is done when the run ends. It is a run of its own in a folder of its own, driven
through the very same orders: a round that was staged and not noted is trained again from its predecessor, with the same
bits. What becomes of the federation's rounds (refused, repeated, gone back before) does not touch it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from fedretina.data.site_data import SiteData
from fedretina.errors import SettingsError, TrainingError
from fedretina.evaluation.model_selection import chosen_step
from fedretina.exchange.payload import Order, Payload, Stamp, Tensors
from fedretina.settings.aggregation import AggregationSettings, SamplingSettings
from fedretina.settings.combinations import CHECKS
from fedretina.settings.correction import NoCorrectionSettings
from fedretina.settings.exchange import ExchangeSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import PhaseSettings, Plan, Step
from fedretina.settings.training import CalibrationSettings, TuneSettings
from fedretina.storage import read_json, write_json

_GIVES_STATE = ("pretrain", "train", "tune")
_log = logging.getLogger(__name__)


class Host(Protocol):
    """What does the work of an order: a `Site`."""

    digest: str

    def handle(self, order: Order, tensors: Tensors, stop: Callable[[], bool]) -> Payload:
        """Do what an order asks."""
        ...


def twin_settings(experiment: Experiment) -> Experiment:
    """The same settings for a site that is alone: what only weighs, corrects or hides an exchange is left out.

    A correction holds back the drift between sites, and there is no other site, nor an aggregate to hold a second model
    to: the twin of that model trains as long and as fast as it does, and no other. Temperatures over the features of
    all sites are such an exchange too. A head of classes that all sites share becomes one of the site's own grades.

    Raises:
        SettingsError: What is left does not go together.
    """
    found = experiment.model_copy(
        update={
            "run": None,
            "restart": None,
            "grades": None,
            "classes": None,
            "quorum": 1,
            "network": experiment.network.model_copy(update={"calibrator": False}),
            "correction": NoCorrectionSettings(),
            "sampling": SamplingSettings(),
            "tune": TuneSettings() if experiment.tune.along else experiment.tune,
            "phases": tuple(_as_alone(experiment, phase) for phase in experiment.phases),
            "calibration": CalibrationSettings(),
            "exchange": ExchangeSettings(personal="everything"),
            "aggregation": AggregationSettings(),
            "verdict": "off",
            "referral_curve": False,
        }
    )
    try:
        for check in CHECKS:
            check(found)
    except ValueError as error:
        raise SettingsError(f"these settings have no twin of one site (verdict: twin): {error}") from error
    return found


def _as_alone(experiment: Experiment, phase: PhaseSettings) -> PhaseSettings:
    """A phase as the site's own model trains in it."""
    if phase.task != "train" or not experiment.tune.along:
        return phase
    return phase.model_copy(update={"training": experiment.tune.over(phase.training or experiment.training)})


class Twin:
    """The run of one site alone.

    Args:
        experiment: The federation's settings.
        data: The site's data.
        folder: The twin's own folder.
        host: Makes what does the work, from settings, data and folder.
    """

    def __init__(
        self, experiment: Experiment, data: SiteData, folder: Path, host: Callable[[Experiment, SiteData, Path], Host]
    ) -> None:
        self.experiment = twin_settings(experiment)
        self.folder = folder
        # Nothing of the twin leaves the site, so nothing is held back from it: its round is chosen by these figures.
        self._data = replace(data, min_count=1)
        self._host = host
        self._plan = Plan.of(self.experiment)
        self._path = folder / "twin.json"
        self._records: list[dict[str, Any]] = read_json(self._path)["steps"] if self._path.exists() else []

    @property
    def complete(self) -> bool:
        """Whether its model is there."""
        return len(self._records) == len(self._plan)

    def follow(self, step: Step, stop: Callable[[], bool]) -> None:
        """Do a round, unless the twin is as far as the federation: one alone, however many the site has missed.

        An order that made up for all of them could take longer than the server waits, and the site would miss this
        round of the federation, too.

        Args:
            step: The federation's step.
            stop: Asked before each batch; True ends the work.

        Raises:
            StoppedError: `stop` said so.
            StateError: The disk is full or not writable.
        """
        same = self._plan.find(step.phase, step.round)
        if same is not None:
            self._advance(min(same.number, len(self._records)) + 1, stop)

    def end(self, stop: Callable[[], bool]) -> None:
        """Do all that is left.

        Raises:
            StoppedError: `stop` said so.
            StateError: The disk is full or not writable.
        """
        self._advance(len(self._plan), stop)

    def _advance(self, steps: int, stop: Callable[[], bool]) -> None:
        if len(self._records) >= steps:
            return
        host = self._host(self.experiment, self._data, self.folder)
        while len(self._records) < steps:
            step = self._plan[len(self._records)]
            try:
                answer = host.handle(self._order(step, host.digest), {}, stop)
            except TrainingError as error:
                # The federation's round must not be lost because the control's is.
                _log.warning("%s: the twin stands still before %s: %s", self._data.name, step.name, error)
                return
            records = [*self._records, {"task": step.task, "scalars": {self._data.name: dict(answer.scalars)}}]
            write_json(self._path, {"steps": records})
            self._records = records

    def _order(self, step: Step, digest: str) -> Order:
        gave = [number for number, record in enumerate(self._records) if record["task"] in _GIVES_STATE]
        accepted = gave[-1] if gave else None
        best = chosen_step(self._records, self._plan.training, self.experiment.choice)
        if best is None:  # nothing can be measured, or not yet
            over = step.task in ("tune", "finalise")
            best = self._plan.training[-1] if over else accepted
        weight = None if accepted is None else 1.0
        return Order(step.task, Stamp("twin", step.phase, step.round, 0, digest), accepted, best, 1.0, weight)
