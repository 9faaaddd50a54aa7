"""The plan of a block: hospitals dealt from sets, draws of n training images, rows, and the controls beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from fedretina.errors import SettingsError
from fedretina.settings.experiment import Experiment
from fedretina.settings.faults import settings_faults
from fedretina.settings.network import WeightsSettings
from fedretina.settings.plan import merged
from fedretina.storage import require_sites
from fedretina_papers.choices import NAME, Role, passes, require_one_place
from fedretina_papers.tuning import Tuned

_STRICT = ConfigDict(frozen=True, extra="forbid")

Kind = Literal["majority", "sums", "trained", "pooled", "ensemble", "temperature", "even", "mean", "joined"]
Size = int | Literal["all"] | Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]?%$")]
"""So many images, all, or so many of a hundred of those that a hospital has."""
Figure = Literal[
    "referable_auc", "kappa", "auc", "balanced_accuracy", "accuracy", "error_auroc", "aurc", "ece", "brier", "nll"
]
PIXELS = "pixels:"
"""Stands for an encoder where rows train all of the network: they see images. No encoder has a colon in its name."""
LESS_IS_BETTER: tuple[Figure, ...] = ("aurc", "ece", "brier", "nll")


def images_of(size: Size, held: int) -> int:
    """How many training images a size is at a hospital that holds so many.

    A number is taken as it stands; a share is of two images at the least, since one makes no batch.
    """
    if size == "all":
        return held
    return size if isinstance(size, int) else max(2, math.ceil(held * int(size.removesuffix("%")) / 100))


class BlockStart(BaseModel):
    """An encoder that rows may stand on, or begin from, in the place of the plan's own.

    Attributes:
        name: Of a pre-training, which the block runs first or whose folder `--encoders` names (docs/oct.md).
        title: In print.
        of: Start in whose place it stands in one case, such as that of as many clients as pre-trained it; no row names
            it then.
        case: That case.
    """

    model_config = _STRICT
    name: str = Field(pattern=NAME)
    title: str = Field(min_length=1)
    of: str = ""
    case: str = ""


class GivenEncoder(BaseModel):
    """What is known of an encoder that was pre-trained before.

    Attributes:
        files: By site of the pre-training its file and its SHA-256.
        passes: Over each site's training images, labelled or not.
        sent: Bytes that each site sent; 0 where it trained alone.
        received: Bytes that were sent to each.
        losses: Contrastive loss of each round, mean of the sites, in nats.
        minutes: Processor time of all sites.
    """

    model_config = _STRICT
    files: dict[str, dict[str, str]] = Field(min_length=1)
    passes: int = Field(ge=1)
    sent: int = Field(ge=0)
    received: int = Field(ge=0)
    losses: tuple[float, ...]
    minutes: float

    @property
    def digests(self) -> tuple[str, ...]:
        """How each encoder's SHA-256 begins, once for all sites that have the same."""
        return tuple(dict.fromkeys(one["sha256"][:12] for _, one in sorted(self.files.items())))

    def weights(self, name: str) -> dict[str, str]:
        """Settings of the weights for a set: its own site's, or the one file where all sites have the same.

        Raises:
            SettingsError: The sites' encoders differ and none is of that name.
        """
        found = list({one["sha256"]: one for one in self.files.values()}.values())
        if name in self.files:
            return {"source": "file", **self.files[name]}
        if len(found) > 1:
            raise SettingsError(
                f"there is an encoder for each of {', '.join(sorted(self.files))}, and none for {name}: pre-train "
                "with the sites that the block is given."
            )
        return {"source": "file", **found[0]}


class BlockRow(BaseModel):
    """A row of a block's tables.

    Attributes:
        name: How the block calls it.
        title: In print.
        role: "alone" for what a hospital can do by itself: a control that every federated row has to beat. "pooled"
            for all images in one place: what nothing federated can be expected to beat.
        kind: "majority" answers how common each grade is; "sums" is a head from sums (own, federated or the mean of
            both); "trained" is a row of the product in its rounds; "pooled" trains the very same network on all images
            in one place, its parts that travel being one, its parts that stay one a hospital. "ensemble" joins runs of
            `row` `of` with several seeds, "temperature" is `of` with one temperature a hospital, "even" is `of` as if
            all grades were equally common at the hospital, "mean" is the mean of the probabilities of its `parts`,
            "joined" the mean of their logarithms, normalised, each part at one temperature for all hospitals that is
            fitted on all their validation images; of one part, that part cooled.
        of: The row whose settings an "ensemble", a "temperature" or an "even" takes, or whose network and passes
            "pooled" takes.
        twin: Of a federated row that trains, the row alone with the very same network and number of passes with labels;
            the encoder before them may have been pre-trained otherwise, or not.
        settings: Laid over the plan's.
        start: Name of the encoder that it stands on, or that it begins from where it trains all of the network; the
            plan's own where "".
        standard: Whether each hospital's rows stand as a BatchNorm of its own would leave them, by the mean and
            variance of its own training images: what FedBN is where an encoder does not train.
        stages: Of a row of sums: whether what early exits read stands beside the pooled features in what is summed.
        small_grades: Of a row of sums: whether grades of few patients are summed too; a hospital's default policy keeps
            those of fewer than `MIN_COUNT` out.
        tune: What is tuned, one after the other.
        members: Runs of an ensemble.
        parts: Rows of sums, or trained ones, whose answers a "mean" or a "joined" joins.
    """

    model_config = _STRICT
    name: str = Field(pattern=NAME)
    title: str = Field(min_length=1)
    role: Role
    kind: Kind
    of: str = ""
    twin: str = ""
    settings: dict[str, Any] = {}
    start: str = ""
    standard: bool = False
    stages: bool = False
    small_grades: bool = True
    tune: tuple[Tuned, ...] = ()
    members: int = Field(default=5, ge=2, le=20)
    parts: tuple[str, ...] = ()


class BlockCase(BaseModel):
    """How hospitals are made of the sets.

    Attributes:
        name: How the block calls it.
        title: In print.
        hospitals: How many are dealt from each set.
        alpha: Of the Dirichlet distribution that skews the classes of a set's hospitals; None for like mixes.
        small: Sets of which n images a hospital are drawn, and whose hospitals are judged; the others keep all of
            theirs. All sets where empty.
        rows: Rows that are run in it, controls and twins among them; all where empty.
    """

    model_config = _STRICT
    name: str = Field(pattern=NAME)
    title: str = Field(min_length=1)
    hospitals: dict[str, int] = Field(min_length=1)
    alpha: float | None = None
    small: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if min(self.hospitals.values()) < 1 or not set(self.small) <= set(self.hospitals):
            raise ValueError(f"case {self.name}: hospitals are one or more of each set, and small names some of these.")
        return self

    @property
    def judged(self) -> tuple[str, ...]:
        """Sets whose hospitals are judged."""
        return self.small or tuple(self.hospitals)


class BlockPlan(BaseModel):
    """What is run.

    Attributes:
        name: Name of the block.
        title: Heading of its page.
        paper: That it is a block.
        page: Template of the page, in `pages/`.
        about: Paragraphs of the page: what is asked, and what the rows are.
        reading: Paragraphs of the page: what its tables say, written once they stood.
        sites: Site file of each set; none for a phantom set.
        cases: Ways in which hospitals are made of the sets.
        sizes: Training images a hospital, ascending, "all" last; "5%" is of those that it has.
        draws: How often patients are drawn.
        skips: Cases that are run at some sizes only, by name.
        only: Rows that are run at a size, by the size, where not all are; controls and twins among them.
        without: Grades whose images are left out, such as those that nobody could grade.
        figures: What is measured, the primary figures first.
        primary: How many of these are primary: a row is said to help by them alone.
        least: Test images of a grade below which it is left out of the macro figures.
        resamples: Draws of patients.
        experiment: Settings of all rows that train.
        rows: In the order of the tables.
        pairs: Rows and what each is tested against in a further table, both ways.
        reference: A row that all others but the majority are tested against in a table more, both ways; none where "".
        starts: Encoders beside the plan's own.
        first: Plan of their pre-training, which runs before the block where no encoders are given: that of a `preset`,
            and what is laid over it.
        encoders: What is known of each of these; none where only stored results are read.
        tuning_draw: Number of the draw that is tuned on; none of those that are reported.
        tuning_size: Training images a hospital in it.
    """

    model_config = _STRICT
    name: str = Field(pattern=NAME)
    title: str
    paper: Literal["block"] = "block"
    page: str = "block.md.j2"
    about: tuple[str, ...] = ()
    reading: tuple[str, ...] = ()
    sites: dict[str, Path | None] = Field(min_length=1)
    cases: tuple[BlockCase, ...] = Field(min_length=1)
    sizes: tuple[Size, ...] = Field(min_length=1)
    draws: int = Field(default=5, ge=1)
    skips: dict[str, tuple[Size, ...]] = {}
    only: dict[Size, tuple[str, ...]] = {}
    without: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = Field(default=("referable_auc", "kappa", "auc"), min_length=1)
    primary: int = Field(default=2, ge=1)
    least: int = Field(default=20, ge=1)
    resamples: int = Field(default=100, ge=2)
    experiment: dict[str, Any]
    rows: tuple[BlockRow, ...]
    reference: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    starts: tuple[BlockStart, ...] = ()
    first: dict[str, Any] = {}
    encoders: dict[str, GivenEncoder] = {}
    tuning_draw: int = Field(default=1000, ge=0)
    tuning_size: Size = 50

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise ValueError("rows must differ by name.")
        if not self.draws <= self.tuning_draw:
            raise ValueError(f"tuning_draw {self.tuning_draw} is one of the draws that are reported: take another.")
        unknown = sorted({one for case in self.cases for one in case.hospitals} - set(self.sites))
        if unknown:
            raise ValueError(f"cases deal hospitals from {unknown}: name a --site for each.")
        if self.primary > len(self.figures):
            raise ValueError("there are fewer figures than primary ones.")
        for row in self.rows:
            needs = row.kind in ("ensemble", "temperature", "even", "pooled")
            if needs != bool(row.of) or (row.of and (row.of not in names or self.row(row.of).kind != "trained")):
                raise ValueError(f"row {row.name!r} is {row.kind!r}: 'of' names a trained row for those that need one.")
            joins = [self.row(name).kind if name in names else "" for name in row.parts]
            least, most = {"mean": (2, 9), "joined": (1, 9)}.get(row.kind, (0, 0))
            if not least <= len(joins) <= most or not set(joins) <= {"sums", "trained"}:
                raise ValueError(
                    f"row {row.name!r} is {row.kind!r}: 'parts' names rows of sums or trained ones, two or more for a "
                    "mean, one or more for what is joined, none for others."
                )
            if row.start not in ("", *(one.name for one in self.starts if not one.of)):
                raise ValueError(f"row {row.name!r} stands on {row.start!r}, which is none of the plan's starts.")
            made_of = (*row.parts, *([row.of] if row.of and row.kind != "pooled" else []))
            if {self.row(name).start for name in made_of} - {row.start}:
                raise ValueError(f"row {row.name!r} and the rows that it is made of stand on different encoders.")
        if self.reference and self.reference not in names:
            raise ValueError(f"reference {self.reference!r} is no row of the block.")
        if lacking := sorted({name for pair in self.pairs for name in pair} - set(names)):
            raise ValueError(f"pairs name {lacking}, which are no rows of the block.")
        twice = [
            list(pair)
            for at, pair in enumerate(self.pairs)
            if self.reference in pair or set(pair) in map(set, self.pairs[:at])
        ]
        if twice:
            raise ValueError(
                f"pairs {twice} are tested already, in another pair or against the reference: leave them out, so that "
                "a difference has one p value."
            )
        self._require_controls()
        return self

    @model_validator(mode="after")
    def _places_starts(self) -> Self:
        known = {one.name for one in self.starts if not one.of}
        places = [(one.of, one.case) for one in self.starts if one.of or one.case]
        if len(set(places)) < len(places) or not set(places) <= {(of, one.name) for of in known for one in self.cases}:
            raise ValueError(
                "a start that stands in the place of another names that one as its 'of', and one of the block's cases: "
                "at most one start for each."
            )
        return self

    @model_validator(mode="after")
    def _limits_rows(self) -> Self:
        names = {row.name for row in self.rows}
        if not (set(self.only) <= set(self.sizes) and {name for rows in self.only.values() for name in rows} <= names):
            raise ValueError(f"only names rows of the block by some of its sizes {list(self.sizes)}.")
        for case in self.cases:
            if lacking := sorted(set(case.rows) - names):
                raise ValueError(f"case {case.name} names {lacking}, which are no rows of the block.")
            for size in self.sizes_of(case) if case.rows else self.only:
                self.at(size, case)._require_controls()
        return self

    def _made(self, row: BlockRow) -> tuple[str, ...]:
        return row.kind, *sorted(self.row(part).kind for part in row.parts)

    def _require_controls(self) -> None:
        """No table without them: a federated row beside nothing says nothing."""
        alone = {row.name for row in self.rows if row.role == "alone"}
        kinds = {row.kind for row in self.rows if row.role == "alone"}
        made = {self._made(row) for row in self.rows if row.role == "alone"}
        if not {"majority", "sums", "trained"} <= kinds:
            raise ValueError(
                "rows that stand alone must be among a block's rows: the majority answer, a probe (kind sums) and a "
                "trained one."
            )
        if not any(row.role == "pooled" for row in self.rows):
            raise ValueError("a pooled row must be among a block's rows, as the upper bound.")
        for row in self.rows:
            if row.role == "federated" and row.kind == "trained" and row.twin not in alone:
                raise ValueError(
                    f"row {row.name!r} trains together: name as its twin a row that trains the same network alone."
                )
            if row.role == "federated" and len(row.parts) > 1 and self._made(row) not in made:
                raise ValueError(
                    f"row {row.name!r} is made of several answers, which may be worth something by itself: add a row "
                    f"alone of kind {row.kind!r}, made of a hospital's own of the same kinds."
                )

    def on(self, encoders: Mapping[str, Any]) -> BlockPlan:
        """The same plan with these encoders, in the shape that `given_encoders` has."""
        return BlockPlan.read({**self.model_dump(), "encoders": encoders})

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> BlockPlan:
        """Check a plan and the settings of all its rows.

        Raises:
            SettingsError: What is wrong.
        """
        try:
            plan = cls.model_validate(dict(settings))
        except ValidationError as error:
            raise SettingsError(f"the block's plan cannot be used: {settings_faults(error, 'plan', cls)}") from error
        require_sites(list(plan.sites))
        seen = set()
        for row in plan.rows:
            if len({plan.shown(plan.row(name)) for name in row.parts}) > 1:
                raise SettingsError(
                    f"row {row.name!r} joins rows that train all of the network with such that do not: join rows of "
                    "one kind."
                )
            if row.kind in ("majority", "mean", "joined"):
                continue
            if row.kind == "sums" and row.tune:
                raise SettingsError(f"row {row.name!r} is of sums, which train nothing: leave its tune out.")
            mine = plan.experiment_of(row, 1, {})
            if plan.shown(row) == PIXELS and row.standard:
                raise SettingsError(
                    f"row {row.name!r} trains all of the network: leave out standard, which is of rows on a frozen "
                    "encoder."
                )
            if row.kind == "pooled":
                require_one_place(row.name, mine)
            seen.add(mine.images)
            if row.kind != "sums" and mine.network.frozen not in ("all", "nothing"):
                raise SettingsError(
                    f"row {row.name!r} freezes {mine.network.frozen} stages: a block's rows stand on an encoder that "
                    "is frozen wholly ('all'), or train all of the network ('nothing')."
                )
            if row.twin:
                theirs = plan.experiment_of(plan.row(row.twin), 1, {})
                same = ("network", "objective", "training", "augment")
                other = [name for name in same if getattr(mine, name) != getattr(theirs, name)]
                if other or passes(mine) != passes(theirs) or theirs.shares:
                    raise SettingsError(
                        f"row {row.name!r} has {row.twin!r} as its twin, but the two differ in {other or 'passes'}: a "
                        "twin has the same network and passes, and shares nothing."
                    )
        if len(seen) > 1:
            raise SettingsError("rows of a block see the same images: set images in the plan's experiment alone.")
        if all(plan.shown(row) == PIXELS for row in plan.rows if row.kind in ("trained", "pooled")):
            raise SettingsError(
                "no row trains a head on the frozen encoder (frozen: all): heads from sums stand on it, so name one."
            )
        return plan

    def begin(self, start: str, of: str) -> WeightsSettings:
        """Weights of a start for a set.

        Raises:
            SettingsError: There is no such encoder.
        """
        if start not in self.encoders:
            raise SettingsError(
                f"rows of {self.name} stand on the encoder {start!r}: give the folder of its pre-training as "
                "--encoders."
            )
        return WeightsSettings.model_validate(self.encoders[start].weights(of))

    def row(self, name: str, case: str = "") -> BlockRow:
        """A row by its name; in a case it stands on the encoder that takes its start's place there, if any does."""
        row = next(row for row in self.rows if row.name == name)
        instead = next((one.name for one in self.starts if one.case == case and one.of == row.start), None)
        return row if not case or instead is None else row.model_copy(update={"start": instead})

    @property
    def stood_on(self) -> frozenset[str]:
        """Starts that any row stands on, or begins from, in any case."""
        every = ((name, case.name) for case in self.cases for name in self.names(case))
        return frozenset(self.row(*one).start for one in every) - {""}

    def names(self, case: BlockCase) -> tuple[str, ...]:
        """Names of the rows that are run in a case."""
        return tuple(row.name for row in self.rows if row.name in (case.rows or (row.name,)))

    def case(self, name: str) -> BlockCase:
        """A case by its name."""
        return next(case for case in self.cases if case.name == name)

    def experiment_of(self, row: BlockRow, seed: int, change: Mapping[str, Any]) -> Experiment:
        """The settings of one run of a row that trains or sums.

        Args:
            row: The row.
            seed: The seed.
            change: What tuning chose.
        """
        of = self.row(row.of) if row.of else row
        base = {"phantom_images": 160} if None in self.sites.values() else {"phantom_images": 0}
        joined = merged(merged(merged(self.experiment, of.settings), row.settings if row.of else {}), change)
        if row.kind == "sums":  # nothing is trained, so nothing reads how
            joined = {**({"images": self.experiment["images"]} if "images" in self.experiment else {}), **row.settings}
        return Experiment.resolve({**base, **joined, "verdict": "off", "name": self.name, "seed": seed})

    def shown(self, row: BlockRow) -> str:
        """What a row sees images through: the name of its frozen encoder, or `PIXELS` where it trains all."""
        trains = row.kind == "trained" or bool(row.of)
        whole = trains and self.experiment_of(row, 1, {}).network.frozen == "nothing"
        return PIXELS if whole or any(self.shown(self.row(name)) == PIXELS for name in row.parts) else row.start

    def at(self, size: Size, case: BlockCase) -> BlockPlan:
        """The plan with the rows alone that are run at a size of a case, for its tables."""
        names = self.names(case)
        rows = tuple(row for row in self.rows if row.name in names and row.name in self.only.get(size, names))
        return self.model_copy(update={"rows": rows})

    def sizes_of(self, case: BlockCase) -> tuple[Size, ...]:
        """Sizes that a case is run at."""
        return tuple(size for size in self.sizes if size not in self.skips.get(case.name, ()))
