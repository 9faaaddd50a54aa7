"""The settings of one run: everything that both ends must agree on, resolved from a row and a job's own words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from torch import nn

from fedretina.aggregation.model_selection import ChoiceSettings
from fedretina.aggregation.rules import AggregationSettings
from fedretina.aggregation.sampling import SamplingSettings
from fedretina.corrections.settings import CorrectionSettings
from fedretina.data.augment import AugmentSettings
from fedretina.data.fundus_settings import FundusSettings
from fedretina.data.image_settings import ImageSettings
from fedretina.ending_settings import CalibrationSettings, EvaluationSettings, ReportSettings, TuneSettings
from fedretina.errors import SettingsError
from fedretina.exchange.partition import partition
from fedretina.exchange.parts import Partition
from fedretina.exchange.settings import ExchangeSettings
from fedretina.experiment_checks import CHECKS
from fedretina.local.training import TrainingSettings
from fedretina.losses.settings import ObjectiveSettings
from fedretina.networks.network_settings import NetworkSettings
from fedretina.phases import PhaseSettings, merged, resolved_phases
from fedretina.restart import RestartSettings
from fedretina.rows import row
from fedretina.settings_faults import settings_faults
from fedretina.uncertainty.theta import ThetaSettings
from fedretina.version import __version__
from fedretina.yaml_file import read_yaml

_STRICT = ConfigDict(frozen=True, extra="forbid")
_OWN: dict[str, Any] = {"run": True, "restart": True, "network": {"weights": {"file": True}}}


class Experiment(BaseModel):
    """Everything that decides a run's figures, equal at the server and at every site.

    Attributes:
        name: What the run is about; a new run is named after it.
        run: Name of a run to continue; a run is new unless it is named.
        restart: Where the run goes back to; written by `fedretina resume RUN --from STEP`.
        row: The row of the table (`fedretina.rows`) that fills what is not set here.
        seed: Seed of every draw.
        phases: Federated phases in order.
        grades: Number of grades of every site, for a head that travels (`personal: nothing`).
        classes: Names of the classes of a head that travels, instead of `grades`: each site's scheme says which of them
            each of its grades stands for (`covers`). A grade may stand for several, and what a site cannot label does
            not count against it.
        quorum: Smallest number of accepted updates that makes a round.
        phantom_images: Training images of an average phantom hospital, 16 or more; 0 refuses sites that point to no
            data of their own, as a run over real hospitals should.
        pooled: Whether sites with the same grades put their images together and train as one: what a federation is
            measured against. It needs all images in one place, so only the plain loop runs it.
    """

    model_config = _STRICT
    name: str = Field(default="fedretina", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")
    run: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    restart: RestartSettings | None = None
    row: str = "feduaa"
    seed: int = Field(default=1, ge=0)
    phases: tuple[PhaseSettings, ...] = (PhaseSettings(),)
    grades: int | None = Field(default=None, ge=2)
    classes: tuple[str, ...] | None = Field(default=None, min_length=2)
    quorum: int = Field(default=1, ge=1)
    network: NetworkSettings = NetworkSettings()
    images: ImageSettings = FundusSettings()
    augment: AugmentSettings = AugmentSettings()
    training: TrainingSettings = TrainingSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    correction: CorrectionSettings = CorrectionSettings()
    sampling: SamplingSettings = SamplingSettings()
    tune: TuneSettings = TuneSettings()
    calibration: CalibrationSettings = CalibrationSettings()
    choice: ChoiceSettings = ChoiceSettings()
    theta: ThetaSettings = ThetaSettings()
    exchange: ExchangeSettings = ExchangeSettings()
    aggregation: AggregationSettings = AggregationSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    report: ReportSettings = ReportSettings()
    phantom_images: int = Field(default=160, ge=0)
    pooled: bool = False

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
    def resolve(cls, words: Mapping[str, Any]) -> Experiment:
        """Fill a job's words with its row and check the whole.

        Raises:
            SettingsError: What is wrong and where, in one sentence a fault.
        """
        chosen = row("feduaa" if words.get("row") is None else str(words["row"])).settings
        joined = merged(chosen, words)
        if isinstance(joined.get("phases"), list | tuple):
            joined["phases"] = resolved_phases(joined, chosen.get("phases", ()))
        try:
            return cls.model_validate(joined)
        except ValidationError as error:
            faults = settings_faults(error, "experiment", cls)
            raise SettingsError(f"the experiment's settings cannot be used: {faults}") from error

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

    @property
    def supervised(self) -> bool:
        """Whether any phase trains with labels; without one the run gives an encoder and no model that answers."""
        return any(phase.task == "train" for phase in self.phases)

    @property
    def head_width(self) -> int | None:
        """Outputs of a head that travels; None where each site has its own."""
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

    def partition(self, net: nn.Module) -> Partition:
        """What travels and what stays of the network, the correction's controls included."""
        keys = any(phase.contrastive is not None and phase.contrastive.keys_travel for phase in self.phases)
        return partition(net, self.exchange, self.correction.travels, self.aggregation.personal, keys)

    def digest(self, parts: Partition) -> str:
        """SHA-256 over the agreed settings, the partition of what travels, and the version."""
        text = json.dumps([self.agreed(), parts.digest(), __version__], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
