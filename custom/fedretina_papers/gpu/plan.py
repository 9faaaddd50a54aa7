"""The plan: which networks are timed, under which settings, and how many sites share the card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina_papers.choices import NAME, plan_of

_STRICT = ConfigDict(frozen=True, extra="forbid")
Precision = Literal["float32", "tf32", "bf16"]
Kernels = Literal["repeatable", "fastest"]


class Timed(BaseModel):
    """A network that is timed.

    Attributes:
        encoder: Its encoder, from no weights: they change no time.
        batch_size: Images per step.
    """

    model_config = _STRICT
    encoder: str
    batch_size: int = Field(default=32, ge=2)


class Work(NamedTuple):
    """What is measured as one, and stored as it ends.

    Attributes:
        network: Name of the network.
        precision: As `training.precision`.
        kernels: As `training.kernels`.
        sites: How many sites train on the card at once; 0 where the settings are measured, by a site alone.
    """

    network: str
    precision: Precision
    kernels: Kernels
    sites: int = 0

    @property
    def name(self) -> str:
        """Of the file that holds what came out."""
        return "-".join((self.network, self.precision, self.kernels, *([f"sites{self.sites}"] if self.sites else [])))


class GpuPlan(BaseModel):
    """What is measured.

    Attributes:
        name: Name of the benchmark.
        networks: By name, which is a file's too; each is measured before the next. A plan that is laid over another
            leaves one out by null.
        precisions: Each is measured with each of the kernels; the first of both is what others are compared with.
        kernels: See there.
        together: How many sites share the card, in turn, each with its part of the memory; under the last precision and
            the first kernels.
        experiment: Words of all runs: images, training.
        images: Images in the image cache that is read.
        steps: Optimiser steps that are timed as one.
        turns: How often each is timed; one turn more comes before and is not counted.
        sites: Not used: the images are phantoms, which read and train as photographs do.
        paper: Of the page.
    """

    model_config = _STRICT
    name: str = Field(pattern=NAME)
    networks: dict[str, Timed] = Field(min_length=1)
    precisions: tuple[Precision, ...] = Field(min_length=1)
    kernels: tuple[Kernels, ...] = Field(min_length=1)
    together: tuple[Annotated[int, Field(ge=1, le=64)], ...] = ()
    experiment: dict[str, Any] = {}
    images: int = Field(default=2048, ge=2)
    steps: int = Field(default=40, ge=1)
    turns: int = Field(default=3, ge=1)
    sites: dict[str, Path | None] = {}
    paper: Literal["gpu"] = "gpu"

    @field_validator("networks", mode="before")
    @classmethod
    def _null_leaves_out(cls, networks: Any) -> Any:
        named = isinstance(networks, Mapping)
        return {name: one for name, one in networks.items() if one is not None} if named else networks

    @model_validator(mode="after")
    def _there_is_nobody_to_name(self) -> Self:
        if self.sites:
            raise ValueError("gpu draws the images that it reads: leave --site and --phantoms out.")
        odd = [name for name in self.networks if not name.replace("_", "").isalnum()]
        if odd:
            raise ValueError(f"a network's name is letters, digits and _, and {odd[0]!r} is not: name it otherwise.")
        return self

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> GpuPlan:
        """Check a plan and every run of it before anything is measured.

        Raises:
            SettingsError: What is wrong, in one sentence a fault.
        """
        plan = plan_of(cls, settings)
        for work in plan.works():
            plan.experiment_of(work)
        return plan

    def works(self) -> list[Work]:
        """All that is measured, in order: of each network the settings that most use, then the others, then sites."""
        found = []
        for network in self.networks:
            pairs = [(precision, kernels) for kernels in self.kernels for precision in self.precisions]
            found += [Work(network, precision, kernels) for precision, kernels in pairs]
            found += [Work(network, self.precisions[-1], self.kernels[0], sites) for sites in self.together]
        return found

    def experiment_of(self, work: Work) -> Experiment:
        """The settings of a run.

        Raises:
            SettingsError: They cannot be.
        """
        timed = self.networks[work.network]
        words = {
            "row": "feduaa",
            "run": self.name,
            "network": {"encoder": timed.encoder, "weights": {"source": "none"}},
            "training": {"batch_size": timed.batch_size, "precision": work.precision, "kernels": work.kernels},
        }
        return Experiment.resolve(merged(words, self.experiment))
