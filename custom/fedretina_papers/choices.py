"""The parts of a benchmark's plan: a row, a reading of stored answers, how sites are split, and what energy costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedretina.errors import SettingsError
from fedretina.settings.experiment import Experiment
from fedretina.settings.faults import settings_faults
from fedretina.settings.plan import PhaseSettings
from fedretina_papers.costs.energy import GridSettings
from fedretina_papers.tuning import Tuned

_Plan = TypeVar("_Plan", bound=BaseModel)
_STRICT = ConfigDict(frozen=True, extra="forbid")
NAME = r"^[a-z][a-z0-9_]{0,39}$"
"""What a row, a reading or a plan may be called."""
Role = Literal["alone", "federated", "pooled"]
"""What a site can do by itself, what sites do together, or all images in one place, the upper bound."""


class RowChoice(BaseModel):
    """A row of the table of methods, or a named variant of one.

    Attributes:
        name: How the benchmark calls it.
        row: The row; the name itself by default.
        title: In print; by default that of the row, with the name of a variant behind it.
        settings: What differs from the row; `phases` as in `BenchmarkPlan.experiment`.
        by_seed: What differs further under one seed, such as the encoder file that the seed starts from.
        grid: Numbers to tune instead of the plan's, one after the other; an empty list tunes nothing.
        seeds: Seeds that it runs with instead of the plan's.
        sites: Sites that it trains on instead of the plan's; it still answers at all of the plan's where it can.
        in_one_place: Whether its network trains on all sites' images together: what travels in the row is one for all,
            what stays is one a site. Nothing federated can be expected to beat it.
        apart: Whether it stands in the table alone that it is for, not among the methods: a batch size and rate of
            FedEE's Tables 7 to 9, or the training without a set of the OCT paper's Table 8.
    """

    model_config = _STRICT
    name: str = Field(pattern=NAME)
    row: str = ""
    title: str = ""
    settings: dict[str, Any] = {}
    by_seed: dict[int, dict[str, Any]] = {}
    grid: tuple[Tuned, ...] | None = None
    seeds: tuple[int, ...] = ()
    sites: tuple[str, ...] = ()
    in_one_place: bool = False
    apart: bool = False

    @property
    def of(self) -> str:
        """Name of the row in the table of methods."""
        return self.row or self.name


class ReadingChoice(BaseModel):
    """Another reading of the answers that runs have stored: a row of the tables for which nothing trains.

    Attributes:
        name: How the benchmark calls it.
        of: The row or variant whose runs it reads.
        reading: "softmax" is the final head alone, of a row with early exits. "temperature" is that with one
            temperature a site, fitted on its validation images. "deep_ensemble" is the mean softmax of several runs of
            other seeds; it needs test images that are the same for all of them. "disagreement" takes for u what early
            exits or passes of dropout disagree on. "dempster" fuses the answers of a row that answers by evidence by
            Dempster's rule. "majority" looks at no image: it answers how common each grade is among the site's
            validation images, and takes of the row nothing but which images were asked about.
        members: Runs of a deep ensemble.
    """

    model_config = _STRICT
    name: str = Field(pattern=NAME)
    of: str
    reading: Literal["softmax", "temperature", "deep_ensemble", "disagreement", "dempster", "majority"]
    members: int = Field(default=5, ge=2, le=100)

    def trials(self, seeds: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Seeds of the runs that each trial reads, by the seed that the trial bears.

        Trial t of an ensemble takes the runs t, t + 1 and so on, from the last on to the first. Trials so share runs,
        and their spread is less than that of ensembles that share none. Where an ensemble takes all runs there is one
        trial; where there are too few, none.

        Args:
            seeds: Seeds of the row.
        """
        if self.reading != "deep_ensemble":
            return {seed: (seed,) for seed in seeds}
        around = [*seeds, *seeds]
        trials = len(seeds) if self.members < len(seeds) else 1 if self.members == len(seeds) else 0
        return {seeds[at]: tuple(around[at : at + self.members]) for at in range(trials)}


class SplitSettings(BaseModel):
    """Which images train and which test.

    Attributes:
        kind: "given" takes the sites' own splits for every seed. "repeated" splits each site anew for every seed, by
            patient, so that a figure's spread holds the luck of the split too, and rows stay paired within a seed.
            "once" splits each site anew, with the tuning seed, alike for every seed: so runs of several seeds may
            answer together, and a figure's spread holds the luck of training alone.
        fractions: Shares of train, val and test under "repeated" and "once".
        limit: At most so many images a split under these two, whole patients.
    """

    model_config = _STRICT
    kind: Literal["given", "repeated", "once"] = "given"
    fractions: tuple[float, float, float] = (0.5, 0.2, 0.3)
    limit: dict[Literal["train", "val", "test"], int] = {}


class EnergySettings(BaseModel):
    """What energy is worked out from where nothing meters it, and what its CO2 equivalents are.

    Attributes:
        watts: Power of a machine that trains, where it has no meter.
        grid: Network, router and electricity; its speeds and powers are assumptions of ours, since FedEE prints none.
    """

    model_config = _STRICT
    watts: float = Field(default=65.0, gt=0, le=10_000)
    grid: GridSettings = GridSettings(router_w=10, idle_w=20, up_mbit_s=50, down_mbit_s=100)


def passes(experiment: Experiment) -> float:
    """How often a run's training sees each image: epochs of all rounds; an epoch with two views counts as two.

    Heads from sums look at each image once and train nothing: 0.
    """
    found = sum(phase.rounds * phase.label_share * _in_a_round(experiment, phase) for phase in experiment.phases)
    return found + (experiment.tune.epochs if experiment.tune.at_end else 0)


def passes_at_once(experiment: Experiment) -> float:
    """How often an order to a site makes it look at each image, at most; in print nothing reads it."""
    ends = experiment.tune.epochs if experiment.tune.at_end else 0
    return max(1.0, ends, *(_in_a_round(experiment, phase) for phase in experiment.phases))


def _in_a_round(experiment: Experiment, phase: PhaseSettings) -> float:
    if phase.sums is not None:
        return 0.0
    settings, tune = phase.training or experiment.training, experiment.tune
    epochs = sum(one.epochs for one in settings.stretches) if settings.stretches else settings.epochs
    views = 1 if phase.contrastive is None else 2
    return float(epochs * views + (tune.epochs if tune.along else 0))


def role_of(choice: RowChoice, experiment: Experiment) -> Role:
    """What a row is to the others: only rows alone are what a federated one has to beat.

    Args:
        choice: The row.
        experiment: Its settings.
    """
    if choice.in_one_place or experiment.pooled:
        return "pooled"
    by_itself = not experiment.shares or (experiment.sums is not None and experiment.sums.answer == "own")
    return "alone" if by_itself else "federated"


def require_one_place(name: str, experiment: Experiment) -> None:
    """Refuse a row whose network cannot train on all images in one place.

    Raises:
        SettingsError: It shares nothing, or only a part of its head; its whole network keeps BatchNorm at home; or it
            does more than train all of its network on all labels.
    """
    network, exchange, phase = experiment.network, experiment.exchange, experiment.phases[0]
    stretches = (phase.training or experiment.training).stretches
    plain = (
        len(experiment.phases) == 1
        and phase.sums is None
        and phase.contrastive is None
        and phase.label_share == 1
        and all(stretch.train == "all" for stretch in stretches)
        and experiment.correction.name == "none"
        and not (experiment.tune.epochs or network.calibrator or experiment.pooled)
    )
    if not plain or exchange.personal in ("everything", "bias"):
        raise SettingsError(
            f"row {name!r} trains one network on all images in one place: take a row of one phase that trains all of "
            "it on all labels without a correction, and shares whole parts (exchange.personal: head, exits or nothing)."
        )
    if network.frozen != "all" and exchange.batchnorm != "shared_all":
        raise SettingsError(
            f"row {name!r} trains one encoder on all images in one place: take a row that shares all of its encoder "
            "(exchange.batchnorm: shared_all)."
        )


def plan_of(kind: type[_Plan], settings: Mapping[str, Any]) -> _Plan:
    """Read the settings of a plan of some kind.

    Raises:
        SettingsError: What is wrong, in one sentence a fault.
    """
    try:
        return kind.model_validate(dict(settings))
    except ValidationError as error:
        faults = settings_faults(error, "plan", kind)
        raise SettingsError(f"the benchmark's plan cannot be used: {faults}") from error
