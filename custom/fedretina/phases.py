"""The phases of a run: stretches of federated rounds, with labels or without, each with settings of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedretina.contrastive.settings import ContrastiveSettings
from fedretina.data.augment import AugmentSettings
from fedretina.data.two_views import TwoViewSettings
from fedretina.exchange.payload import Task
from fedretina.local.training import TrainingSettings

_LAID_OVER = ("training", "augment")


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
        training: Local training in this phase; a job's words here are laid over the run's own `training`.
        augment: Random transforms in this phase, likewise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(default="train", pattern=r"^[a-z][a-z0-9_]{0,29}$")
    rounds: int = Field(default=5, ge=1, le=10_000)
    contrastive: ContrastiveSettings | None = None
    views: TwoViewSettings = TwoViewSettings()
    weights: Literal["uniform", "samples"] = "uniform"
    label_share: float = Field(default=1.0, gt=0, le=1)
    training: TrainingSettings | None = None
    augment: AugmentSettings | None = None

    @model_validator(mode="after")
    def _labels_are_used_or_not(self) -> Self:
        if self.contrastive is not None and self.label_share < 1:
            raise ValueError(f"label_share is {self.label_share:g}, but phase {self.name!r} uses no labels: drop it.")
        if self.contrastive is not None and self.training is not None and self.training.stretches:
            raise ValueError(f"phase {self.name!r} trains the encoder alone: give training.epochs, no stretches.")
        return self

    @property
    def task(self) -> Task:
        """What the sites do in each of its rounds."""
        return "train" if self.contrastive is None else "pretrain"


def resolved_phases(words: Mapping[str, Any], row: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The phases of a job: a phase is filled from the row's phase of its name, its settings from the run's.

    Args:
        words: The job's words, laid over its row already.
        row: The phases of the row.

    Returns:
        Words for `PhaseSettings`; what is no mapping is left for it to refuse.
    """
    named = {str(phase.get("name", "train")): phase for phase in row}
    found: list[Any] = []
    for phase in words["phases"]:
        if not isinstance(phase, Mapping):
            found.append(phase)
            continue
        full = merged(named.get(str(phase.get("name", "train")), {}), phase)
        for name in _LAID_OVER:
            if isinstance(full.get(name), Mapping) and isinstance(words.get(name, {}), Mapping):
                full[name] = merged(words.get(name, {}), full[name])
        found.append(full)
    return found


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with others laid over them."""
    joined = dict(base)
    for key, value in over.items():
        old = joined.get(key)
        joined[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return joined
