"""The plan: which rows of which paper at which size, and which of them come first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedretina.errors import DataError, SettingsError
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import read_data_settings, site_modality
from fedretina_papers.choices import NAME, RowChoice, plan_of
from fedretina_papers.plan import BenchmarkPlan

_STRICT = ConfigDict(frozen=True, extra="forbid")


class Part(BaseModel):
    """One paper's rows over the sites whose images are of its modality.

    Attributes:
        title: In print.
        modality: Of the images; a site with others is none of this part's.
        first: So many rows, the first ones of the plan, run with a seed before any other row of any part does: the
            controls, and the method that is asked about.
        titles: What rows are called in print that are used for something else than their row's title says.
        paper_trains: Where the paper's training starts and how long it is, in print behind "the paper's start".
        plan: Words of a `BenchmarkPlan`, without name, seeds and sites.
    """

    model_config = _STRICT
    title: str = Field(min_length=1)
    modality: str
    first: int = Field(ge=1)
    titles: dict[str, str] = {}
    paper_trains: str = ""
    plan: dict[str, Any]

    def title_of(self, bench: BenchmarkPlan, choice: RowChoice) -> str:
        """What the page calls a row of the part."""
        return self.titles.get(choice.name) or bench.title(choice)


class SpeedSettings(BaseModel):
    """How long real and synthetic input are timed against each other, in turn.

    Attributes:
        steps: Optimiser steps that are timed as one.
        turns: How often each is timed; one turn more of each comes before and is not counted.
    """

    model_config = _STRICT
    steps: int = Field(default=40, ge=1)
    turns: int = Field(default=3, ge=1)


class Work(NamedTuple):
    """A run.

    Attributes:
        part: Name of its part.
        row: Its row, by number in the part's plan.
        seed: Its seed.
    """

    part: str
    row: int
    seed: int


class PaperSizePlan(BaseModel):
    """What is run.

    Attributes:
        name: Name of the benchmark.
        parts: By name, which is a folder's too.
        seeds: Seeds of all runs; every row runs with the first before any runs with the second.
        sites: Site file of each site; none for a phantom hospital, which takes part in every part.
        speed: How speed is measured.
        paper: Of the page.
    """

    model_config = _STRICT
    name: str = Field(pattern=NAME)
    parts: dict[str, Part] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    sites: dict[str, Path | None] = {}
    speed: SpeedSettings = SpeedSettings()
    paper: Literal["paper_size"] = "paper_size"

    @model_validator(mode="after")
    def _names_are_folders(self) -> Self:
        odd = [name for name in self.parts if not name.isalnum()]
        if odd or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("a part's name is letters and digits, and seeds differ from each other: name each once.")
        return self

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> PaperSizePlan:
        """Check a plan and every run of it before anything trains.

        Raises:
            SettingsError: What is wrong, in one sentence a fault.
            DataError: A site's file cannot be read, or does not say what its images are.
        """
        plan = plan_of(cls, settings)
        plan.benches  # noqa: B018  reads every part
        without = sorted(set(plan.sites) - {site for name in plan.parts for site in plan.sites_of(name)})
        if without:
            raise SettingsError(
                f"the images of {without} are of no modality that a part has "
                f"({', '.join(part.modality for part in plan.parts.values())}): leave these sites out."
            )
        return plan

    def sites_of(self, name: str) -> dict[str, Path | None]:
        """The sites of a part, in alphabetical order.

        Raises:
            DataError: A site's file cannot be read, or does not say what its images are.
        """
        asked = self.parts[name].modality
        return {
            site: file for site, file in sorted(self.sites.items()) if file is None or _modality(site, file) == asked
        }

    @cached_property
    def benches(self) -> Mapping[str, BenchmarkPlan]:
        """Each part as an ordinary benchmark; one without sites has a phantom in their place, to be looked at only.

        Raises:
            SettingsError: A part's plan, or a run of it, cannot be.
        """
        found = {}
        for name, part in self.parts.items():
            sites = self.sites_of(name) or {"site-1": None}
            words = {**part.plan, "name": f"{self.name}_{name}", "seeds": self.seeds, "sites": sites}
            found[name] = BenchmarkPlan.read(words)
        return found

    def works(self) -> list[Work]:
        """All runs of the parts that have sites, in the order in which they are begun."""
        plans = {name: bench for name, bench in self.benches.items() if self.sites_of(name)}
        found = [
            (self.seeds.index(seed), row >= self.parts[name].first, row, at, Work(name, row, seed))
            for at, (name, bench) in enumerate(plans.items())
            for row in range(len(bench.rows))
            for seed in self.seeds
        ]
        return [one[-1] for one in sorted(found, key=lambda one: one[:-1])]

    def experiment_of(self, work: Work) -> Experiment:
        """The settings of a run."""
        bench = self.benches[work.part]
        return bench.experiment_of(bench.rows[work.row], work.seed, {})

    def named(self, work: Work) -> str:
        """What a run is called."""
        return f"{work.part}, {self.benches[work.part].rows[work.row].name}, seed {work.seed}"


def _modality(site: str, file: Path) -> str:
    found = site_modality(read_data_settings(file, site))
    if found is None:
        raise DataError(f"{file} does not say what the images of {site} are: set data.modality in it.")
    return found
