"""The plan of a benchmark: which rows, seeds, sites and settings, and how each row is tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from runpy import run_path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedretina.errors import SettingsError
from fedretina.rows import ROWS, row
from fedretina.settings.experiment import Experiment, known_row
from fedretina.settings.plan import merged
from fedretina.storage import require_name, require_sites
from fedretina.yaml_file import parse_yaml, read_yaml
from fedretina_papers.choices import (
    NAME,
    EnergySettings,
    ReadingChoice,
    RowChoice,
    SplitSettings,
    plan_of,
    require_one_place,
)
from fedretina_papers.kinds import DEFAULT, Compares, kind_of
from fedretina_papers.tuning import Tuned

_STRICT = ConfigDict(frozen=True, extra="forbid")
_PRESETS = resources.files("fedretina_papers") / "plans"


class BenchmarkPlan(BaseModel):
    """What is run.

    Attributes:
        name: Name of the benchmark.
        reference: The row that all others are compared with.
        beside: The row that is shown beside the reference in single cases.
        rows: Rows and variants, in the order of the tables.
        readings: Other readings of the rows' stored answers, rows of the tables like them.
        seeds: Seeds of the runs; every row runs with every seed.
        sites: Site file of each site; none for a phantom hospital.
        spare_sites: Further sites, for the rows alone that name them.
        sets: The set that a site's images are of, such as "kermany"; several sites may share one. A site that is not
            named is a set of its own.
        strangers: Site file of each set of out-of-distribution images, which no site's grades are for: does a row's
            uncertainty tell them from a site's own?
        others: At most so many test images of each other site are answered by a site's model too, chosen by a hash:
            does its uncertainty tell them from its own? 0 asks nothing.
        experiment: Settings of all rows, in the shape of `Experiment`; a row's own choice on its axes wins. `phases`
            may be a mapping of settings by the name of a phase: they go to the rows that have it, and a phase that is
            given null is left out.
        splits: Which images train and which test.
        grid: Numbers that each row is tuned by, one after the other, by validation AUC; empty for no tuning.
        tuning_seed: Seed of the tuning runs.
        noise: Variances of the Gaussian noise on test images, for images in [0, 1].
        noise_images: At most so many test images a site are answered under noise, the same for all rows and variances.
        costs: Whether weights, arithmetic, memory and time of each row's network are measured, after the runs.
        target: Validation accuracy at which a run counts as there, in tables of rounds.
        unit: What the manifests' patient ids stand for where they are no patients, such as "recording" or "lesion".
        metric: What FedEE's tables call accuracy; for its skin images that is the balanced one, the mean recall.
        level: Accuracies that a site should reach by referring cases, for FedEE's Figure 5.
        alpha: Error rate of the sets of grades that stand in for single answers.
        printed: Which of FedEE's data sets ours are set beside; None for none, since they are others.
        energy: What energy and CO2 equivalents are worked out from.
        paper: Whose tables the page shows.
    """

    model_config = _STRICT
    name: str = Field(pattern=NAME)
    reference: str
    beside: str = ""
    rows: tuple[RowChoice, ...] = Field(min_length=1)
    readings: tuple[ReadingChoice, ...] = ()
    seeds: tuple[int, ...] = Field(min_length=1)
    sites: dict[str, Path | None] = Field(min_length=1)
    spare_sites: dict[str, Path | None] = {}
    sets: dict[str, str] = {}
    strangers: dict[str, Path] = {}
    others: int = Field(default=0, ge=0)
    experiment: dict[str, Any] = {}
    splits: SplitSettings = SplitSettings()
    grid: tuple[Tuned, ...] = ()
    tuning_seed: int = Field(default=1, ge=0)
    noise: tuple[float, ...] = ()
    noise_images: int = Field(default=1_000_000, ge=1)
    costs: bool = False
    target: float = Field(default=0.9, ge=0, le=1)
    unit: str = Field(default="patient", pattern=r"^[a-z]{3,20}$")
    metric: Literal["accuracy", "balanced_accuracy"] = "accuracy"
    level: tuple[float, ...] = (0.9, 0.95)
    alpha: float = Field(default=0.1, gt=0, lt=1)
    printed: Literal["pamap2", "isic2019", "physionet2016"] | None = None
    energy: EnergySettings = EnergySettings()
    paper: str = DEFAULT

    @model_validator(mode="before")
    @classmethod
    def _rows_by_name(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and isinstance(settings.get("rows"), list | tuple):
            listed = [{"name": one} if isinstance(one, str) else one for one in settings["rows"]]
            return {**settings, "rows": listed}
        return settings

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = [choice.name for choice in self.rows]
        if len(set(names)) < len(names) or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("rows and seeds must differ from each other: list each once.")
        if self.reference not in names:
            raise ValueError(
                f"the reference {self.reference!r}, which all rows are compared with, is none of the rows {names}: add "
                "it, or make one of them the reference."
            )
        if any(not 0 <= variance <= 1 for variance in self.noise):
            raise ValueError(f"noise is {list(self.noise)}: a variance lies between 0 and 1, images in [0, 1].")
        both = sorted(set(self.sites) & set(self.spare_sites))
        if both:
            raise ValueError(f"{both} are sites and spare sites: a site is one of the two.")
        for choice in self.rows:
            unknown = sorted(set(choice.sites) - set(self.sites) - set(self.spare_sites))
            if unknown:
                raise ValueError(f"row {choice.name!r} trains on {unknown}: name sites or spare_sites of the plan.")
        return self

    @model_validator(mode="after")
    def _readings_have_runs_to_read(self) -> Self:
        names = [choice.name for choice in self.rows]
        every = [*names, *(one.name for one in self.readings)]
        if len(set(every)) < len(every):
            raise ValueError("readings must differ in name from each other and from the rows: list each once.")
        for one in self.readings:
            if one.of not in names:
                raise ValueError(f"reading {one.name!r} is of {one.of!r}, which is none of the rows {names}.")
            if one.reading == "deep_ensemble" and self.splits.kind == "repeated":
                raise ValueError(
                    f"reading {one.name!r} joins runs of several seeds, but under splits.kind 'repeated' each seed has "
                    "other test images: use 'once' or 'given'."
                )
        if any(not 0 < one <= 1 for one in self.level):
            raise ValueError(f"level is {list(self.level)}: an accuracy is above 0 and at most 1.")
        return self

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> BenchmarkPlan:
        """Check a plan and every run of it before anything trains.

        Raises:
            SettingsError: What is wrong, in one sentence a fault; or there is no such `paper`.
            RefusedError: A site's name could leave its folder.
        """
        plan = plan_of(cls, settings)
        kind_of(plan.paper)
        require_sites([*plan.sites, *plan.spare_sites])
        for name in plan.strangers:
            require_name(name, "out-of-distribution set")
        for choice in plan.rows:
            seed = plan.seeds_of(choice)[0]
            experiment = plan.experiment_of(choice, seed, {})
            if choice.in_one_place:
                require_one_place(choice.name, experiment)
            for number in plan.grid_of(choice):
                for value in (*number.values, *number.farthest()):
                    plan.experiment_of(choice, seed, number.settings(value))
        for one in plan.readings:
            choice = plan.choice(one.of)
            answers = plan.experiment_of(choice, plan.seeds_of(choice)[0], {}).evaluation
            kind = "evidence" if one.reading == "dempster" else "softmax"
            passes = answers.passes > 1 and one.reading in ("softmax", "temperature")
            alone = one.reading == "disagreement" and answers.estimator != "softmax_mean"
            if answers.evidential != (kind == "evidence") or passes or alone:
                raise SettingsError(
                    f"reading {one.name!r} ({one.reading}) is of {one.of!r}, which answers by {answers.estimator} in "
                    f"{answers.passes} passes: it needs a row that answers by {kind}"
                    f"{' without dropout' if passes else ' of several members' if alone else ''}."
                )
        return plan

    @property
    def compares(self) -> Compares:
        """What the paper's own comparison differs by."""
        return kind_of(self.paper).compares

    def choice(self, name: str) -> RowChoice:
        """A row or variant by its name."""
        return next(choice for choice in self.rows if choice.name == name)

    def seeds_of(self, choice: RowChoice) -> tuple[int, ...]:
        """Seeds that a row runs with."""
        return choice.seeds or self.seeds

    def trained_on(self, choice: RowChoice) -> tuple[str, ...]:
        """Names of the sites that a row trains on, in alphabetical order."""
        return tuple(sorted(choice.sites or self.sites))

    def grid_of(self, choice: RowChoice) -> tuple[Tuned, ...]:
        """Numbers that a row is tuned by."""
        return self.grid if choice.grid is None else choice.grid

    def experiment_of(self, choice: RowChoice, seed: int, change: Mapping[str, Any]) -> Experiment:
        """The settings of one run.

        Args:
            choice: The row.
            seed: The seed.
            change: What was chosen of its grid.
        """
        own = merged(choice.settings, choice.by_seed.get(seed, {}))
        joined = merged(merged(self.experiment, own), change)
        if isinstance(joined.get("phases"), Mapping):
            joined["phases"] = _phases(joined["phases"], choice.of)
        # The papers compared nothing at the end: their figures and times stay those of their rows alone.
        found = Experiment.resolve({"verdict": "off", **joined, "name": self.name, "row": choice.of, "seed": seed})
        if found.choice.model == "last" or "by" in (joined.get("choice") or {}):
            return found
        # Nor did they ask how many patients stand behind a grade when they chose a round.
        return found.model_copy(update={"choice": found.choice.model_copy(update={"by": "auc"})})

    def title(self, choice: RowChoice) -> str:
        """What the tables call a row; its head is called personal only where it is."""
        if choice.title:
            return choice.title
        title = row(choice.of).title
        if self.experiment_of(choice, self.seeds_of(choice)[0], {}).exchange.personal in ("nothing", "exits"):
            title = title.replace(", personal head", "")
        return title if choice.name == choice.of else f"{title} ({choice.name})"


def _phases(named: Mapping[str, Any], of: str) -> list[dict[str, Any]]:
    """The phases of a row, in its order, with what is said of each by name."""
    names = [str(phase["name"]) for phase in _listed(known_row(of).settings)]
    unknown = sorted(set(named) - {str(phase["name"]) for one in ROWS.values() for phase in _listed(one.settings)})
    if unknown:
        raise SettingsError(f"phases names {unknown}, which no row has: use pretrain and train, or list the phases.")
    plain = sorted(name for name, one in named.items() if one is not None and not isinstance(one, Mapping))
    if plain:
        raise SettingsError(f"phases.{plain[0]} has settings of its own: write them below it, as `name: value` lines.")
    return [{"name": name, **named.get(name, {})} for name in names if named.get(name, {}) is not None]


def _listed(settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = settings.get("phases", ({"name": "train"},))
    return found


def presets() -> list[str]:
    """Names of the plans that come with the package."""
    return sorted(path.name.removesuffix(".yaml") for path in _PRESETS.iterdir() if path.name.endswith(".yaml"))


def preset(name: str) -> dict[str, Any]:
    """The words of a plan that comes with the package, laid over those of the plan that it `extends`.

    Raises:
        SettingsError: There is no such plan.
    """
    names = presets()
    if name not in names:
        raise SettingsError(
            f"there is no benchmark {name!r}; there are {', '.join(names)}, and files of one's own (PLAN.yaml)."
        )
    return _extended(parse_yaml((_PRESETS / f"{name}.yaml").read_text(encoding="utf-8"), f"the plan {name}"))


def asked_plan(name: str) -> dict[str, Any]:
    """The words of a plan that a user names: one of the package, or a file PLAN.yaml, which may extend one of these.

    Beside the file PLAN.py is run, if it is there: it registers a study of one's own. No other plan runs anything.

    Raises:
        SettingsError: There is no such plan.
    """
    file = Path(name)
    if file.suffix != ".yaml" or not file.exists():
        return preset(name)
    words = read_yaml(file, "the plan")
    if (own := file.with_suffix(".py")).exists():
        run_path(str(own))
    return _extended(words)


def _extended(words: dict[str, Any]) -> dict[str, Any]:
    below = words.pop("extends", None)
    return words if below is None else merged(preset(str(below)), words)
