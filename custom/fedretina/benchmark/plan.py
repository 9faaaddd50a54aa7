"""The plan of a benchmark: which rows, seeds, sites and settings, and how each row is tuned."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedretina.errors import SettingsError
from fedretina.experiment import Experiment
from fedretina.phases import merged
from fedretina.rows import row

_STRICT = ConfigDict(frozen=True, extra="forbid")
_NAME = r"^[a-z][a-z0-9_]{0,39}$"


class RowChoice(BaseModel):
    """A row of the table of methods, or a named variant of one.

    Attributes:
        name: How the benchmark calls it.
        row: The row; the name itself by default.
        settings: What differs from the row.
        grid: Settings to tune over instead of the plan's; one of them is no tuning.
    """

    model_config = _STRICT
    name: str = Field(pattern=_NAME)
    row: str = ""
    settings: dict[str, Any] = {}
    grid: tuple[dict[str, Any], ...] = ()

    @property
    def of(self) -> str:
        """Name of the row in the table of methods."""
        return self.row or self.name


class SplitSettings(BaseModel):
    """Which images train and which test.

    Attributes:
        kind: "given" takes the sites' own splits for every seed. "repeated" splits each site anew for every seed, by
            patient, so that a figure's spread holds the luck of the split too, and rows stay paired within a seed.
        fractions: Shares of train, val and test under "repeated".
        limit: At most so many images a split under "repeated", whole patients.
    """

    model_config = _STRICT
    kind: Literal["given", "repeated"] = "given"
    fractions: tuple[float, float, float] = (0.5, 0.2, 0.3)
    limit: dict[Literal["train", "val", "test"], int] = {}


class BenchmarkPlan(BaseModel):
    """What is run.

    Attributes:
        name: Name of the benchmark.
        reference: The row that all others are compared with.
        beside: The row that is shown beside the reference in single cases.
        rows: Rows and variants, in the order of the tables.
        seeds: Seeds of the runs; every row runs with every seed.
        sites: Site file of each site; none for a phantom hospital.
        experiment: Settings of all rows, in the shape of `Experiment`; a row's own choice on its axes wins.
        splits: Which images train and which test.
        grid: Settings that each row is tuned over, by validation AUC; empty for no tuning.
        tuning_seed: Seed of the tuning runs.
        noise: Variances of the Gaussian noise on test images, for images in [0, 1].
        noise_images: At most so many test images a site are answered under noise, the same for all rows and variances.
    """

    model_config = _STRICT
    name: str = Field(pattern=_NAME)
    reference: str
    beside: str = ""
    rows: tuple[RowChoice, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    sites: dict[str, Path | None] = Field(min_length=1)
    experiment: dict[str, Any] = {}
    splits: SplitSettings = SplitSettings()
    grid: tuple[dict[str, Any], ...] = ()
    tuning_seed: int = Field(default=1, ge=0)
    noise: tuple[float, ...] = ()
    noise_images: int = Field(default=1_000_000, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _rows_by_name(cls, words: Any) -> Any:
        if isinstance(words, dict) and isinstance(words.get("rows"), list | tuple):
            listed = [{"name": one} if isinstance(one, str) else one for one in words["rows"]]
            return {**words, "rows": listed}
        return words

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = [choice.name for choice in self.rows]
        if len(set(names)) < len(names) or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("rows and seeds must differ from each other: list each once.")
        if self.reference not in names:
            raise ValueError(f"the reference {self.reference!r} is none of the rows {names}: name one of them.")
        if any(not 0 <= variance <= 1 for variance in self.noise):
            raise ValueError(f"noise is {list(self.noise)}: a variance lies between 0 and 1, images in [0, 1].")
        return self

    @classmethod
    def read(cls, words: Mapping[str, Any]) -> BenchmarkPlan:
        """Check a plan and every run of it before anything trains.

        Raises:
            SettingsError: What is wrong, in one sentence a fault.
        """
        try:
            plan = cls.model_validate(dict(words))
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, f['loc'])) or 'plan'}: {f['msg']}" for f in error.errors())
            raise SettingsError(f"the benchmark's plan cannot be used: {faults}") from error
        for choice in plan.rows:
            for change in plan.candidates(choice):
                plan.experiment_of(choice, plan.seeds[0], change)
        return plan

    def candidates(self, choice: RowChoice) -> tuple[dict[str, Any], ...]:
        """What a row is tuned over; one candidate that changes nothing where it is not."""
        return choice.grid or self.grid or ({},)

    def experiment_of(self, choice: RowChoice, seed: int, change: Mapping[str, Any]) -> Experiment:
        """The settings of one run.

        Args:
            choice: The row.
            seed: The seed.
            change: The candidate of its grid.
        """
        words = merged(merged(self.experiment, choice.settings), change)
        return Experiment.resolve({**words, "name": self.name, "row": choice.of, "seed": seed})

    def title(self, choice: RowChoice) -> str:
        """What the tables call a row."""
        return row(choice.of).title if choice.name == choice.of else f"{row(choice.of).title} ({choice.name})"


def preset(name: str) -> dict[str, Any]:
    """The words of a plan that comes with the package.

    Raises:
        SettingsError: There is no such plan.
    """
    folder = resources.files("fedretina.benchmark") / "plans"
    names = sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))
    if name not in names:
        raise SettingsError(f"there is no benchmark {name!r}; there are {', '.join(names)}.")
    words: dict[str, Any] = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    return words


def grid_of(axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of values: `{"training.learning_rate": [.1, .01]}` gives two candidates."""
    found = []
    for values in itertools.product(*axes.values()):
        change: dict[str, Any] = {}
        for path, value in zip(axes, values, strict=True):
            nested: Any = value
            for key in reversed(path.split(".")):
                nested = {key: nested}
            change = merged(change, nested)
        found.append(change)
    return found
