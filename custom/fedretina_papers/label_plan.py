"""The plan of the label-efficiency benchmark: starts, shares of the labels, and the rows that they make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedretina.settings.experiment import READ_WITH_LABELS
from fedretina.settings.plan import merged
from fedretina_papers.choices import SplitSettings, plan_of
from fedretina_papers.plan import BenchmarkPlan

_STRICT = ConfigDict(frozen=True, extra="forbid")
_NAME = r"^[a-z][a-z0-9_]{0,23}$"


class Start(BaseModel):
    """Where the encoder starts.

    Attributes:
        name: Part of the names of its rows.
        title: In print.
        settings: Of its fine-tuning, laid over the plan's.
        pretrain: Settings of its pre-training here, laid over the plan's; None for a start that has none.
    """

    model_config = _STRICT
    name: str = Field(pattern=_NAME)
    title: str = Field(min_length=1)
    settings: dict[str, Any] = {}
    pretrain: dict[str, Any] | None = None


class Method(BaseModel):
    """A way to fine-tune.

    Attributes:
        name: Part of the names of its rows; empty for the only one of a plan.
        title: In print.
        row: The row whose phase `train` it is.
        settings: What differs from the row; laid over the plan's, below those of starts and shares.
        starts: Names of the starts that it is run from; all of the plan's by default.
    """

    model_config = _STRICT
    name: str = Field(default="", pattern=r"^([a-z][a-z0-9_]{0,23})?$")
    title: str = ""
    row: str
    settings: dict[str, Any] = {}
    starts: tuple[str, ...] = ()


class Share(BaseModel):
    """A share of the labels.

    Attributes:
        share: Of each site's training images, whole patients, in (0, 1].
        settings: Of the fine-tuning with so many, such as smaller batches; laid over the start's.
    """

    model_config = _STRICT
    share: float = Field(gt=0, le=1)
    settings: dict[str, Any] = {}

    @property
    def tag(self) -> str:
        """Its part of the names of rows: "10" for 10 %."""
        return f"{100 * self.share:g}".replace(".", "p")


class LabelPlan(BaseModel):
    """What is run.

    Attributes:
        name: Name of the benchmark.
        row: The row whose phase `pretrain` is the first stage and, unless the plan has methods, whose phase `train` is
            the second.
        methods: Ways to fine-tune, in the order of the tables; none for the row's own.
        starts: Starts, in the order of the table.
        against: Names of the starts that every other one is compared with.
        shares: Shares of the labels, ascending.
        seeds: Seeds; each has a pre-training of its own, unless one serves all.
        encoder_seed: Seed of the one pre-training that serves all seeds; None for one a seed.
        sites: Site file of each site; none for a phantom hospital.
        experiment: Settings of all runs, `phases` by name.
        splits: Which images train and which test. Pre-training sees the images of train alone.
        grid: Settings that each start is tuned over with each share, by validation AUC; empty for no tuning.
        tuning_seed: Seed of the tuning runs.
        paper: Of the page.
    """

    model_config = _STRICT
    name: str = Field(pattern=_NAME)
    row: str = "oct_moco_scaffold"
    methods: tuple[Method, ...] = ()
    starts: tuple[Start, ...] = Field(min_length=2)
    against: tuple[str, ...]
    shares: tuple[Share, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    encoder_seed: int | None = Field(default=None, ge=0)
    sites: dict[str, Path | None] = Field(min_length=1)
    experiment: dict[str, Any] = {}
    splits: SplitSettings = SplitSettings()
    grid: tuple[dict[str, Any], ...] = ()
    tuning_seed: int = Field(default=1, ge=0)
    paper: Literal["oct_labels"] = "oct_labels"

    @field_validator("shares", mode="before")
    @classmethod
    def _shares_by_number(cls, listed: Any) -> Any:
        if isinstance(listed, list | tuple):
            return [{"share": one} if isinstance(one, int | float) else one for one in listed]
        return listed

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = [start.name for start in self.starts]
        shares = [one.share for one in self.shares]
        if len(set(names)) < len(names) or sorted(set(shares)) != shares:
            raise ValueError("starts must differ by name, and shares must ascend: list each once.")
        if not set(self.against) <= set(names):
            raise ValueError(f"against names {list(self.against)}: name some of the starts {names}.")
        methods = [one.name for one in self.methods]
        if len(set(methods)) < len(methods) or ("" in methods and len(methods) > 1):
            raise ValueError(f"methods are {methods}: several of them need names that differ.")
        unknown = sorted({start for one in self.methods for start in one.starts} - set(names))
        if unknown:
            raise ValueError(f"methods name the starts {unknown}, which are none of {names}.")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must differ from each other: list each once.")
        return self

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> LabelPlan:
        """Check a plan and every run of it before anything trains.

        Raises:
            SettingsError: What is wrong, in one sentence a fault.
        """
        plan = plan_of(cls, settings)
        plan.fine_tuning({})
        if plan.pretrained:
            plan.pre_training()
        return plan

    @property
    def pretrained(self) -> tuple[Start, ...]:
        """The starts that are pre-trained here."""
        return tuple(start for start in self.starts if start.pretrain is not None)

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Seeds that need an encoder: those of the runs and of the tuning if there is any; or the one that serves."""
        if self.encoder_seed is not None:
            return (self.encoder_seed,)
        tuned = len(self.grid) > 1 and self.tuning_seed not in self.seeds
        return (*self.seeds, self.tuning_seed) if tuned else self.seeds

    def pre_training(self) -> BenchmarkPlan:
        """The first stage: a row for each start that is pre-trained here.

        Raises:
            SettingsError: A run of it cannot be.
        """
        rows = [
            {"name": f"pretrain_{start.name}", "row": self.row, "settings": _alone("train", start.pretrain or {})}
            for start in self.pretrained
        ]
        shared = self._shared()
        shared["experiment"] = {name: one for name, one in self.experiment.items() if name not in READ_WITH_LABELS}
        more = {"rows": rows, "reference": rows[0]["name"], "seeds": self.all_seeds}
        return BenchmarkPlan.read({**shared, **more})

    def fine_tuning(self, encoders: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> BenchmarkPlan:
        """The second stage: a row for each start and share.

        Args:
            encoders: By start and seed the encoder's `file` and `sha256`; a start without any begins from the seed.

        Raises:
            SettingsError: A run of it cannot be.
        """
        rows = []
        for method, start in self.fine_tuned:
            files = self._by_seed(encoders.get(start.name, {}))
            by_seed = {seed: {"network": {"weights": {"source": "file", **one}}} for seed, one in files.items()}
            for share in self.shares:
                # Without the phase that pre-trains, nothing would read its layers.
                asked = {"phases": {"train": {"label_share": share.share}}, "network": {"contrast": None}}
                own = merged(_alone("pretrain", method.settings), start.settings)
                settings = merged(merged(own, share.settings), asked)
                name = row_name(start.name, share.tag, method.name)
                rows.append({"name": name, "row": method.row, "settings": settings, "by_seed": by_seed})
        first = row_name(self.starts[0].name, self.shares[-1].tag, self.fine_tuned[0][0].name)
        more = {"rows": rows, "reference": first, "seeds": self.seeds, "grid": self.grid, "paper": self.paper}
        return BenchmarkPlan.read({**self._shared(), **more})

    @property
    def fine_tuned(self) -> list[tuple[Method, Start]]:
        """Each way to fine-tune with each start that it is run from."""
        methods = self.methods or (Method(row=self.row),)
        return [
            (method, start)
            for method in methods
            for start in self.starts
            if not method.starts or start.name in method.starts
        ]

    def _by_seed(self, encoders: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        if self.encoder_seed is None:
            return dict(encoders)
        return {seed: one for one in encoders.values() for seed in (*self.seeds, self.tuning_seed)}

    def _shared(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sites": self.sites,
            "experiment": self.experiment,
            "splits": self.splits.model_dump(),
            "tuning_seed": self.tuning_seed,
        }


def row_name(start: str, tag: str, method: str = "") -> str:
    """Name of the row of a start and a share, and of a way to fine-tune where there are several."""
    return "_".join(part for part in (method, start, tag) if part)


def _alone(other: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run of one stage: the other phase is left out."""
    return merged(settings, {"phases": {other: None}})
