"""The settings of one run: everything that both ends must agree on, resolved from a row and a job's own words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from torch import nn

from fedretina.aggregation.choice import ChoiceSettings
from fedretina.aggregation.rules import AggregationSettings
from fedretina.aggregation.sampling import SamplingSettings
from fedretina.corrections.settings import CorrectionSettings
from fedretina.data.augment import AugmentSettings
from fedretina.data.fundus_settings import FundusSettings
from fedretina.data.image_settings import ImageSettings
from fedretina.data.modality import SIGNALS
from fedretina.errors import SettingsError
from fedretina.exchange.partition import ExchangeSettings, Partition, partition
from fedretina.local.training import TrainingSettings
from fedretina.losses.settings import ObjectiveSettings
from fedretina.networks.encoders import PATCH
from fedretina.networks.network_settings import NetworkSettings
from fedretina.phases import PhaseSettings, merged, resolved_phases
from fedretina.rows import row
from fedretina.settings_faults import settings_faults
from fedretina.uncertainty.estimators import AucInput, EstimatorName
from fedretina.uncertainty.theta import ThetaSettings
from fedretina.version import __version__

_STRICT = ConfigDict(frozen=True, extra="forbid")
_TASKS = {"prepare", "validate", "tune", "calibrate", "finalise"}
_OWN: dict[str, Any] = {"run": True, "network": {"weights": {"file": True}}}


class TuneSettings(BaseModel):
    """Fine-tuning of the chosen model at each site after the federated rounds (+FT); nothing of it leaves.

    Attributes:
        epochs: Local epochs over all parts; 0 for none.
        learning_rate: Rate; the training's own where it is not given.
    """

    model_config = _STRICT
    epochs: int = Field(default=0, ge=0, le=1000)
    learning_rate: float | None = Field(default=None, gt=0, le=10)


class CalibrationSettings(BaseModel):
    """How temperatures are found where the network has a calibrator (multi-domain temperature scaling).

    Attributes:
        ridge: lambda of the regression of a temperature on features, in units of the features' mean square.
    """

    model_config = _STRICT
    ridge: float = Field(default=1.0, gt=0, le=1e6)


class EvaluationSettings(BaseModel):
    """How a trained model answers and what its AUC is computed from.

    Attributes:
        estimator: `evidence` answers alpha/S with u = K/S, `softmax` the softmax with its entropy, both of the final
            head. Over early exits, passes of dropout or several runs: `softmax_mean` the mean softmax with its entropy,
            `evidence_mean` the means of alpha/S and u, `evidence_dempster` the members fused by Dempster's rule.
        auc_input: What is ranked: the expected probability alpha/S by default, since that is what the clinician
            is shown; the official FedUAA code ranks the softmax of raw logits. `answer` ranks what the estimator
            answers, as ensembles should.
        passes: Forward passes with dropout at work (MC-dropout); 1 asks once, without dropout.
    """

    model_config = _STRICT
    estimator: EstimatorName = "evidence"
    auc_input: AucInput = "expected_probability"
    passes: int = Field(default=1, ge=1, le=100)


class ReportSettings(BaseModel):
    """What is written at the end of a run beside models, cards and figures.

    Attributes:
        draws: Draws of the patient bootstrap behind each interval.
        page: Whether the HTML page is written at once; `fedretina report` writes it later from the stored record.
    """

    model_config = _STRICT
    draws: int = Field(default=1000, ge=10, le=100_000)
    page: bool = True


class Experiment(BaseModel):
    """Everything that decides a run's figures, equal at the server and at every site.

    Attributes:
        name: What the run is about; a new run is named after it.
        run: Name of a run to continue; a run is new unless it is named.
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

    @model_validator(mode="after")
    def _phases_are_distinct(self) -> Self:
        names = [phase.name for phase in self.phases]
        if not names:
            raise ValueError("phases is empty: give at least one, with a name and its rounds.")
        if len(set(names)) < len(names) or _TASKS & set(names):
            raise ValueError(
                f"phase names must differ from each other and from {', '.join(sorted(_TASKS))}, got {names}."
            )
        tasks = [phase.task for phase in self.phases]
        if tasks != sorted(tasks):  # "pretrain" before "train"
            raise ValueError("a phase without labels stands behind one with labels: pre-train first.")
        return self

    @model_validator(mode="after")
    def _a_label_free_phase_has_its_layers(self) -> Self:
        methods = {phase.contrastive.method for phase in self.phases if phase.contrastive is not None}
        layers = None if self.network.contrast is None else self.network.contrast.layout
        if methods - {layers}:
            raise ValueError(
                f"phases pre-train by {', '.join(sorted(methods))}, but network.contrast is for {layers}: set "
                f"network.contrast.layout to the one method of all label-free phases."
            )
        if methods and self.correction.name == "moon":
            raise ValueError("correction 'moon' is a contrast of its own and cannot correct a contrastive phase.")
        if not self.supervised and (self.tune.epochs or self.network.calibrator or self.aggregation.personal):
            raise ValueError(
                "a run without a phase that trains with labels has nothing to tune, calibrate or tell alike: add such "
                "a phase, or leave tune, network.calibrator and the similarity rule out."
            )
        return self

    @field_validator("phantom_images")
    @classmethod
    def _no_phantoms_or_enough(cls, images: int) -> int:
        if 0 < images < 16:
            raise ValueError(f"phantom_images is {images}: use 16 or more, or 0 for no phantom hospitals.")
        return images

    @model_validator(mode="after")
    def _a_travelling_head_has_one_width(self) -> Self:
        if self.grades is not None and self.classes is not None:
            raise ValueError("grades and classes both say how wide the travelling head is: keep classes alone.")
        if (self.exchange.personal in ("nothing", "exits")) != (self.head_width is not None):
            raise ValueError(
                "grades or classes must be set when the head travels (exchange.personal: nothing or exits), and only "
                "then: a head can be mixed only where it has one width."
            )
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes names a class twice in {list(self.classes)}: each stands for one output.")
        return self

    @model_validator(mode="after")
    def _images_fit_the_encoder(self) -> Self:
        (_, height, width), patch = self.images.shape, PATCH.get(self.network.encoder, 1)
        if height % patch or width % patch:
            size = f"images.image_size is {height}" if height == width else f"samples are {height} x {width}"
            mend = "a multiple" if height == width else "another encoder"
            raise ValueError(
                f"encoder {self.network.encoder} cuts images into patches of {patch} pixels, but {size}: choose {mend}."
            )
        return self

    @model_validator(mode="after")
    def _random_transforms_fit_the_modality(self) -> Self:
        kind = self.images.modality
        used = (self.augment, *(phase.augment for phase in self.phases))
        unfit = sorted({name for one in used if one is not None for name in one.unfit(kind)})
        if unfit:
            raise ValueError(f"augment: {', '.join(unfit)} would spoil samples of {kind}: set them to 0 or false.")
        if kind in SIGNALS and any(phase.contrastive for phase in self.phases):
            raise ValueError(
                f"label-free phases draw views of pictures, and samples of {kind} are none: leave them out."
            )
        return self

    @model_validator(mode="after")
    def _members_have_an_estimator(self) -> Self:
        chosen, network = self.evaluation, self.network
        if chosen.passes > 1 and network.dropout is None:
            raise ValueError(
                f"evaluation.passes is {chosen.passes}, but the network has no dropout, so all passes would be equal: "
                "set network.dropout, or passes to 1."
            )
        if self.exchange.personal == "exits" and network.exits is None:
            raise ValueError("exchange.personal is 'exits', but the network has none: set network.exits.")
        if self.exchange.encrypt != "nothing" and network.exits is not None:
            raise ValueError(
                "exchange.encrypt hides the head from the server, but early exits that know the same grades would "
                "travel in the clear: let one of the two be."
            )
        return self

    @model_validator(mode="after")
    def _pooled_sites_exchange_nothing(self) -> Self:
        if self.pooled and self.exchange.personal != "everything":
            raise ValueError("pooled sites train alone: set exchange.personal to 'everything', or pooled to false.")
        return self

    @model_validator(mode="after")
    def _one_model_for_a_server_half(self) -> Self:
        if self.aggregation.personal and self.correction.has_server_half:
            raise ValueError(
                f"correction {self.correction.name!r} moves one global model, but aggregation 'similarity' keeps one a "
                "site: choose another of the two."
            )
        return self

    @model_validator(mode="after")
    def _a_robust_rule_sees_all_that_travels(self) -> Self:
        robust = self.aggregation.robust
        if robust.name == "none":
            return self
        if self.correction.has_server_half:
            raise ValueError(
                f"correction {self.correction.name!r} moves the aggregate by a plain mean over all sites, which "
                f"aggregation.robust {robust.name!r} does not guard: choose another of the two."
            )
        if self.exchange.personal == "everything":
            raise ValueError(f"aggregation.robust is {robust.name!r}, but nothing travels: set it to 'none'.")
        if self.quorum < robust.least:
            raise ValueError(
                f"quorum is {self.quorum}, but aggregation.robust {robust.name!r} (hostile: {robust.hostile}) needs "
                f"{robust.least} accepted updates a round: set quorum to {robust.least} or more, or hostile lower."
            )
        return self

    @model_validator(mode="after")
    def _what_is_encrypted_is_only_averaged(self) -> Self:
        if self.exchange.encrypt == "nothing":
            return self
        aggregation, correction = self.aggregation, self.correction
        if aggregation.robust.name != "none" or aggregation.personal:
            other = aggregation.rule if aggregation.personal else aggregation.robust.name
            raise ValueError(
                f"aggregation {other!r} compares what the sites sent, but exchange.encrypt is "
                f"{self.exchange.encrypt!r} and the server cannot read it: choose another of the two."
            )
        if correction.has_server_half:
            raise ValueError(
                f"correction {correction.name!r} sends controls of the head in the clear, which undoes exchange.encrypt"
                ": choose another of the two."
            )
        return self

    @classmethod
    def resolve(cls, words: Mapping[str, Any]) -> Experiment:
        """Fill a job's words with its row and check the whole.

        Raises:
            SettingsError: What is wrong and where, in one sentence a fault.
        """
        chosen = row(str(words.get("row", "feduaa"))).settings
        joined = merged(chosen, words)
        if isinstance(joined.get("phases"), list | tuple):
            joined["phases"] = resolved_phases(joined, chosen.get("phases", ()))
        try:
            return cls.model_validate(joined)
        except ValidationError as error:
            faults = settings_faults(error, "experiment")
            raise SettingsError(f"the experiment's settings cannot be used: {faults}") from error

    @classmethod
    def load(cls, path: Path) -> Experiment:
        """Read an experiment file (YAML) and resolve it.

        Raises:
            SettingsError: The file is missing, is no YAML mapping, or holds settings that cannot be used.
        """
        try:
            words = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise SettingsError(f"the experiment file {path.name} cannot be read: {type(error).__name__}.") from error
        if not isinstance(words, dict):
            raise SettingsError(f"the experiment file {path.name} holds no settings: write `name: value` lines.")
        return cls.resolve(words)

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
        """All settings but a run's name and an end's own path to a weights file, which may differ."""
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
