"""The settings of one run: everything that both ends must agree on, resolved from a row and a job's own settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, Self, cast

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, field_validator, model_validator

from fedretina.errors import SettingsError
from fedretina.rows import ROWS, Row
from fedretina.rows.recipes import recipe
from fedretina.settings.aggregation import AggregationSettings, ChoiceSettings, SamplingSettings
from fedretina.settings.choice import Choice, load_parts
from fedretina.settings.combinations import CHECKS
from fedretina.settings.correction import CorrectionSettings, NoCorrectionSettings
from fedretina.settings.evaluation import EvaluationSettings, EvidenceSettings
from fedretina.settings.exchange import ExchangeSettings
from fedretina.settings.faults import did_you_mean, settings_faults
from fedretina.settings.images import AugmentSettings, FundusSettings, ImageSettings
from fedretina.settings.network import NetworkSettings
from fedretina.settings.objective import TAU, ObjectiveSettings, TweuSettings
from fedretina.settings.plan import PhaseSettings, RestartSettings, merged, resolved_phases, without_settings
from fedretina.settings.sums import SumsSettings
from fedretina.settings.theta import ThetaSettings, YoudenSettings
from fedretina.settings.training import (
    CalibrationSettings,
    ReportSettings,
    TrainingSettings,
    TuneSettings,
)
from fedretina.version import __version__
from fedretina.yaml_file import read_yaml

_STRICT = ConfigDict(frozen=True, extra="forbid")

_OWN: dict[str, Any] = {"run": True, "restart": True, "network": {"weights": {"file": True}}}


READ_WITH_LABELS = ("objective", "augment", "evaluation", "theta", "choice")
"""Settings that a run reads in its phases with labels, and after them."""


class Digested(Protocol):
    """Anything with a digest: the partition of a network, which this module does not know."""

    def digest(self) -> str:
        """SHA-256 over what it is."""
        ...


def known_row(name: str) -> Row:
    """A row that somebody asks for by its name, of this package or of one that is installed beside it.

    Raises:
        SettingsError: No such row; the message names the one that is most alike, else all.
    """
    if name not in ROWS:
        load_parts()
    if name not in ROWS:
        raise SettingsError(f"there is no row {name!r} (`fedretina methods` lists them): {did_you_mean(name, ROWS)}")
    return ROWS[name]


class Experiment(BaseModel):
    """Everything that decides a run's figures, equal at the server and at every site.

    Attributes:
        name: What the run is about; a new run is named after it.
        run: Name of a run to continue; a run is new unless it is named.
        restart: Where the run goes back to; written by `fedretina resume RUN --from STEP`.
        row: The row of the table (`fedretina.rows`) that fills what is not set here.
        recipe: A recipe (`fedretina.rows.recipes`) that is laid over the row, below what is set here; None for none, as
            the rows of the papers are.
        seed: Seed of every draw.
        phases: Federated phases in order.
        grades: Number of grades of every site, for a head that travels (`personal: nothing`).
        classes: Names of the classes of a head that travels, instead of `grades`: each site's scheme says which of them
            each of its grades stands for (`covers`). A grade may stand for several, and what a site cannot label does
            not count against it. Of heads from sums they are the classes that sums are told apart by.
        quorum: Smallest number of accepted updates that makes a round.
        phantom_images: Training images of an average phantom hospital, 16 or more; 0 refuses sites that point to no
            data of their own, as a run over real hospitals should.
        pooled: Whether sites with the same grades, or all where no label is read, put their images together and train
            as one: what a federation is measured against. It needs all images in one place, so only the plain loop runs
            it.
        verdict: What each site compares the run's model with at the end, on its own test patients, keeping the one that
            its validation prefers. "own": the commonest grade, and a head of its own on the encoder as the run starts
            with it, which takes seconds. "twin": besides, the same row trained at home in the same rounds, nothing
            exchanged: each round takes about twice as long. "off" compares nothing, as the papers did, and keeps the
            run's model.
        referral_curve: Whether the sites are asked, once before the end, for counts of their ill validation patients by
            the chance of disease that the run's model gives them. A site sends them where its own policy lets it
            (`policy.referral_curve`), and one with too few such patients for its promise may draw its threshold towards
            those of the others (`data.promise.drawn`). The model goes down once more for it.
    """

    model_config = _STRICT
    name: str = Field(default="fedretina", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")
    run: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    restart: RestartSettings | None = None
    row: str = "feduaa"
    recipe: str | None = None
    seed: int = Field(default=1, ge=0)
    phases: tuple[PhaseSettings, ...] = (PhaseSettings(),)
    grades: int | None = Field(default=None, ge=2)
    classes: tuple[str, ...] | None = Field(default=None, min_length=2)
    quorum: int = Field(default=1, ge=1)
    network: NetworkSettings = NetworkSettings()
    images: SerializeAsAny[ImageSettings] = FundusSettings()
    augment: AugmentSettings = AugmentSettings()
    training: TrainingSettings = TrainingSettings()
    objective: SerializeAsAny[ObjectiveSettings] = TweuSettings()
    correction: SerializeAsAny[CorrectionSettings] = NoCorrectionSettings()
    sampling: SamplingSettings = SamplingSettings()
    tune: TuneSettings = TuneSettings()
    calibration: CalibrationSettings = CalibrationSettings()
    choice: ChoiceSettings = ChoiceSettings()
    theta: SerializeAsAny[ThetaSettings] = YoudenSettings()
    exchange: ExchangeSettings = ExchangeSettings()
    aggregation: AggregationSettings = AggregationSettings()
    evaluation: SerializeAsAny[EvaluationSettings] = EvidenceSettings()
    report: ReportSettings = ReportSettings()
    phantom_images: int = Field(default=160, ge=0)
    pooled: bool = False
    verdict: Literal["own", "twin", "off"] = "own"
    referral_curve: bool = False

    @field_validator("phantom_images")
    @classmethod
    def _no_phantoms_or_enough(cls, images: int) -> int:
        if 0 < images < 16:
            raise ValueError(f"phantom_images is {images}: use 16 or more, or 0 for no phantom hospitals.")
        return images

    @model_validator(mode="after")
    def _settings_go_together(self) -> Self:
        for check in CHECKS:
            check(self)
        return self

    @classmethod
    def resolve(cls, settings: Mapping[str, Any]) -> Experiment:
        """Fill a job's settings with those of its recipe and its row, and check the whole.

        Args:
            settings: As they are read from the experiment file.

        Raises:
            SettingsError: What is wrong and where, in one sentence per fault.
        """
        name = "feduaa" if settings.get("row") is None else str(settings["row"])
        base = chosen = known_row(name).settings
        if settings.get("recipe") is not None:
            asked = merged(chosen, settings)
            for more in recipe(str(settings["recipe"])).over(asked, partial(cls._reads, asked)):
                own = {"phases": without_settings(base["phases"], more)} if "phases" in base else {}
                base = merged({**base, **own}, more)
        joined = merged(base, settings)
        if isinstance(joined.get("phases"), list | tuple):
            joined["phases"] = resolved_phases(joined, base.get("phases", ()))
        try:
            found = cls.model_validate(joined)
        except ValidationError as error:
            faults = settings_faults(error, "experiment", cls)
            raise SettingsError(f"the experiment's settings cannot be used: {faults}") from error
        # A row fills them for its phases with labels, so they are no fault of the settings as a whole.
        unread = [name for name in READ_WITH_LABELS if name in settings]
        if unread and not found.supervised:
            raise SettingsError(
                f"the experiment's settings cannot be used: no phase trains with labels, so nothing reads "
                f"{' and '.join(unread)}: leave it out, or add such a phase."
            )
        return found

    @classmethod
    def _reads(cls, settings: Mapping[str, Any], axis: str, setting: str) -> bool:
        """Whether the method that settings choose on an axis, or the axis' default, reads a setting."""
        field = cls.model_fields[axis]
        given, kind = settings.get(axis), cast(type[Choice], field.annotation)
        name = given.get(kind.key) if isinstance(given, Mapping) else given
        method = type(field.default) if name is None else kind.choices().get(str(name))
        return method is not None and setting in method.model_fields

    @classmethod
    def load(cls, path: Path) -> Experiment:
        """Read an experiment file (YAML) and resolve it.

        Raises:
            YamlFileError: The file cannot be read; what may be said of it elsewhere is its `outside`.
            SettingsError: Its settings cannot be used.
        """
        return cls.resolve(read_yaml(path, "the experiment file"))

    def require_federated(self) -> Self:
        """Return the experiment itself, where sites can run it without putting their images together.

        Raises:
            SettingsError: It is a pooled one.
        """
        if self.pooled:
            raise SettingsError(
                "a pooled experiment needs all images in one place, which no federation has: run it in the plain loop "
                "(`fedretina loop`), or set pooled to false."
            )
        return self

    def with_weights_file(self, path: Path | None) -> Self:
        """Point an experiment that names weights by SHA-256 to this machine's copy of the file.

        Raises:
            SettingsError: It asks for a file that this machine was not told of.
        """
        weights = self.network.weights
        if weights.source != "file":
            return self
        if path is None:
            said = (
                f"the job starts from a weights file with sha256 {weights.sha256}: set weights_file in this end's own "
                "settings to a copy of it."
            )
            raise SettingsError(said).telling(said)  # the digest is the job's
        chosen = weights.model_copy(update={"file": path})
        return self.model_copy(update={"network": self.network.model_copy(update={"weights": chosen})})

    @property
    def supervised(self) -> bool:
        """Whether any phase learns from labels; without one the run gives an encoder and no model that answers."""
        return any(phase.task in ("train", "sums") for phase in self.phases)

    @property
    def trains(self) -> bool:
        """Whether a network learns from labels; heads from sums follow from features that stand still."""
        return any(phase.task == "train" for phase in self.phases)

    @property
    def sums(self) -> SumsSettings | None:
        """Settings of the heads from sums, with which a run ends; None in a run that trains with labels."""
        return self.phases[-1].sums

    @property
    def shares(self) -> bool:
        """Whether the sites get anything from each other: a part of a model, or sums."""
        return self.sums is not None or self.exchange.personal != "everything"

    @property
    def ends_with(self) -> ChoiceSettings:
        """How the round is chosen that the run ends with: of rounds that a part of the sites measured, the last."""
        return ChoiceSettings(model="last") if self.sampling.fraction < 1 else self.choice

    @property
    def head_width(self) -> int | None:
        """Outputs of a head that travels; None where each site has its own."""
        if self.sums is not None:
            return None
        return self.grades if self.classes is None else len(self.classes)

    def phase(self, name: str) -> PhaseSettings:
        """A phase by its name, with the settings that hold in it; a step between phases has the last one's."""
        found = next((phase for phase in self.phases if phase.name == name), self.phases[-1])
        return found.model_copy(
            update={"training": found.training or self.training, "augment": found.augment or self.augment}
        )

    def agreed(self) -> dict[str, Any]:
        """All settings but those that may differ: a run's name, where it goes back to, an end's own weights file."""
        return self.model_dump(mode="json", exclude=_OWN)

    def settings_digest(self) -> str:
        """SHA-256 over the agreed settings and the version; no network is built for it."""
        return hashlib.sha256(json.dumps([self.agreed(), __version__], sort_keys=True).encode()).hexdigest()

    @property
    def tau(self) -> float:
        """Temperature of the warmed belief: the objective's own, or the paper's."""
        return float(getattr(self.objective, "tau", TAU))

    @property
    def keys_travel(self) -> bool:
        """Whether any phase lets the server average the sites' key networks."""
        return any(phase.contrastive is not None and phase.contrastive.keys_travel for phase in self.phases)

    def digest(self, parts: Digested) -> str:
        """SHA-256 over the agreed settings, the partition of what travels, and the version."""
        text = json.dumps([self.agreed(), parts.digest(), __version__], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
