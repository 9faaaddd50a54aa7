"""The settings of one run: everything that both ends must agree on, resolved from a row and a job's own words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, field_validator, model_validator

from fedretina.errors import SettingsError
from fedretina.rows import ROWS, row
from fedretina.rows.recipes import recipe
from fedretina.settings.aggregation import AggregationSettings, ChoiceSettings, SamplingSettings
from fedretina.settings.choice import load_parts
from fedretina.settings.correction import CorrectionSettings, NoCorrectionSettings
from fedretina.settings.evaluation import EvaluationSettings, EvidenceSettings
from fedretina.settings.exchange import ExchangeSettings
from fedretina.settings.faults import settings_faults
from fedretina.settings.images import SIGNALS, AugmentSettings, FundusSettings, ImageSettings
from fedretina.settings.network import NetworkSettings
from fedretina.settings.objective import TAU, ObjectiveSettings, TweuSettings
from fedretina.settings.plan import PhaseSettings, RestartSettings, merged, resolved_phases
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
        pooled: Whether sites with the same grades put their images together and train as one: what a federation is
            measured against. It needs all images in one place, so only the plain loop runs it.
        verdict: What each site compares the run's model with at the end, on its own test patients, keeping the one that
            its validation prefers. "own": the commonest grade, and a head of its own on the encoder as the run starts
            with it, which takes seconds. "twin": besides, the same row trained at home in the same rounds, nothing
            exchanged: each round takes about twice as long. "off" compares nothing, as the papers did, and keeps the
            run's model.
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
    images: ImageSettings = FundusSettings()
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
        if name not in ROWS:
            load_parts()
        chosen = row(name).settings
        base = chosen
        if settings.get("recipe") is not None:
            for more in recipe(str(settings["recipe"])).over(merged(chosen, settings)):
                base = merged(base, more)
        joined = merged(base, settings)
        if isinstance(joined.get("phases"), list | tuple):
            joined["phases"] = resolved_phases(joined, chosen.get("phases", ()))
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
            raise SettingsError(
                f"the job starts from a weights file with sha256 {str(weights.sha256)[:12]}...: "
                "set weights_file in this site's settings to a copy of it."
            )
        chosen = weights.model_copy(update={"file": path})
        return self.model_copy(update={"network": self.network.model_copy(update={"weights": chosen})})

    @property
    def supervised(self) -> bool:
        """Whether any phase learns from labels; without one the run gives an encoder and no model that answers."""
        return any(phase.task in ("train", "sums") for phase in self.phases)

    @property
    def sums(self) -> SumsSettings | None:
        """Settings of the heads from sums; None in a run that trains."""
        return self.phases[0].sums

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


_TASKS = {"prepare", "validate", "tune", "calibrate", "finalise"}


def _phases_are_distinct(run: Experiment) -> None:
    names = [phase.name for phase in run.phases]
    if not names:
        raise ValueError("phases is empty: give at least one, with a name and its rounds.")
    if len(set(names)) < len(names) or _TASKS & set(names):
        raise ValueError(f"phase names must differ from each other and from {', '.join(sorted(_TASKS))}, got {names}.")
    tasks = [phase.task for phase in run.phases]
    if "sums" in tasks and len(tasks) > 1:
        raise ValueError("a phase of sums is a run's only one: it trains nothing that another could go on from.")
    if tasks != sorted(tasks):  # "pretrain" before "train"
        raise ValueError("a phase without labels stands behind one with labels: pre-train first.")


def _a_label_free_phase_has_its_layers(run: Experiment) -> None:
    methods = {phase.contrastive.layout for phase in run.phases if phase.contrastive is not None}
    layers = None if run.network.contrast is None else run.network.contrast.layout
    if layers is not None and not methods:
        raise ValueError(
            f"network.contrast has the layers of {layers}, but no phase trains without labels, so nothing reads it: "
            "set network.contrast to null, or add a phase with contrastive."
        )
    if methods - {layers}:
        raise ValueError(
            f"phases pre-train by {', '.join(sorted(methods))}, but network.contrast is for {layers}: set "
            f"network.contrast.layout to the one method of all label-free phases."
        )
    if methods and run.correction.contrasts:
        raise ValueError(
            f"correction {run.correction.name!r} is a contrast of its own and cannot correct a contrastive phase."
        )
    if not run.supervised and (run.tune.epochs or run.network.calibrator or run.aggregation.personal):
        raise ValueError(
            "a run without a phase that trains with labels has nothing to tune, calibrate or tell alike: add such "
            "a phase, or leave tune, network.calibrator and the similarity rule out."
        )


def _a_travelling_head_has_one_width(run: Experiment) -> None:
    if run.grades is not None and run.classes is not None:
        raise ValueError("grades and classes both say how wide the travelling head is: keep classes alone.")
    if run.sums is not None:
        _classes_of_sums(run, run.sums)
    elif (run.exchange.personal in ("nothing", "exits")) != (run.head_width is not None):
        raise ValueError(
            "grades or classes must be set when the head travels (exchange.personal: nothing or exits), and only "
            "then: a head can be mixed only where it has one width."
        )
    if run.classes is not None and len(set(run.classes)) < len(run.classes):
        raise ValueError(f"classes names a class twice in {list(run.classes)}: each stands for one output.")


def _classes_of_sums(run: Experiment, sums: SumsSettings) -> None:
    if run.classes is None:
        raise ValueError("sums are told apart by the classes that the sites share: name them under classes.")
    if sums.shares is not None and len(sums.shares) != len(run.classes):
        raise ValueError(f"sums.shares gives {len(sums.shares)} weights for {len(run.classes)} classes: give each one.")


def _sums_train_nothing(run: Experiment) -> None:
    """Refuse what no head from sums would read: the encoder stands still, and one layer is solved for."""
    if run.sums is None:
        return
    network, chosen = run.network, run.evaluation
    parts = [name for name in ("projector", "contrast", "exits", "dropout") if getattr(network, name) is not None]
    if parts or network.calibrator or network.head.layout != "linear":
        named = [*parts, *(["calibrator"] if network.calibrator else [])]
        raise ValueError(
            "a head from sums is one linear layer on the encoder: set network.head.layout to 'linear'"
            + (f", and leave network.{' and network.'.join(named)} out." if named else ".")
        )
    if run.exchange.personal != "everything":
        raise ValueError(
            "a run of sums sends no part of the network, whatever exchange.personal lets go: set it to 'everything'."
        )
    if run.correction.name != "none" or run.tune.epochs or run.pooled or run.sampling.fraction < 1:
        raise ValueError("a run of sums trains nothing: leave correction, tune, sampling and pooled out.")
    if run.aggregation.personal or run.aggregation.robust.guards:
        raise ValueError("sums are added and never weighed: leave aggregation.rule and aggregation.robust as they are.")
    if chosen.estimator != "softmax" or chosen.passes > 1 or run.objective.name != "cross_entropy":
        raise ValueError(
            "heads from sums answer by softmax: set evaluation.estimator to 'softmax', evaluation.passes to 1 and "
            "objective to 'cross_entropy'."
        )


def _images_fit_the_encoder(run: Experiment) -> None:
    (_, height, width), traits = run.images.shape, run.network.traits
    patch = traits.patch
    if traits.signals and height > 1:
        raise ValueError(
            f"encoder {run.network.encoder} takes signals, one row of samples, but images.modality is "
            f"{run.images.modality!r}, whose samples are {height} x {width}: choose another encoder."
        )
    if height % patch or width % patch:
        size = f"images.image_size is {height}" if height == width else f"samples are {height} x {width}"
        trained = "" if traits.side is None else f"; its published weights were trained with {traits.side}"
        mend = f"a multiple{trained}" if height == width else "another encoder"
        raise ValueError(
            f"encoder {run.network.encoder} cuts images into patches of {patch} pixels, but {size}: choose {mend}."
        )


def _random_transforms_fit_the_modality(run: Experiment) -> None:
    kind = run.images.modality
    used = (run.augment, *(phase.augment for phase in run.phases))
    unfit = sorted({name for one in used if one is not None for name in one.unfit(kind)})
    if unfit:
        raise ValueError(f"augment: {', '.join(unfit)} would spoil samples of {kind}: set them to 0 or false.")
    if kind in SIGNALS and any(phase.contrastive for phase in run.phases):
        raise ValueError(f"label-free phases draw views of pictures, and samples of {kind} are none: leave them out.")


def _frozen_stages_fit_the_run(run: Experiment) -> None:
    frozen = run.network.frozen
    if frozen == "nothing":
        return
    if any(phase.contrastive for phase in run.phases):
        raise ValueError(
            f"network.frozen is {frozen!r}, but a label-free phase trains the whole encoder: leave frozen out, or drop "
            "the phase."
        )
    for phase in run.phases:
        training, random = phase.training or run.training, phase.augment or run.augment
        if run.network.frozen_cache == "strict" and random.endless:
            raise ValueError(
                f"augment: {', '.join(random.endless)} gives other pixels each time, so that what the frozen stages "
                "make of an image cannot be kept: set it to 0 (flip, flip_vertical and quarter_turns can be kept), or "
                "network.frozen_cache to 'lenient' to run the frozen stages anew for every batch."
            )
        if frozen == "all" and any(stretch.train == "encoder" for stretch in training.resolved_stretches()):
            raise ValueError(
                f"phase {phase.name!r} trains the encoder alone for a while, but network.frozen is 'all': drop that "
                "stretch, or freeze fewer stages."
            )


def _a_recipe_fits_the_phases(run: Experiment) -> None:
    blind = [phase.name for phase in run.phases if phase.contrastive is not None]
    if run.recipe is not None and blind:
        raise ValueError(
            f"recipe {run.recipe!r} is for runs that train with labels alone, but phase {blind[0]!r} pre-trains "
            "without: leave recipe out, or drop the phase and start from the encoder that a run exported."
        )


def _a_fitted_head_stays_at_its_site(run: Experiment) -> None:
    if run.network.head.start == "seed":
        return
    if run.exchange.personal not in ("head", "everything"):
        raise ValueError(
            f"network.head.start is {run.network.head.start!r}, but the head travels (exchange.personal: "
            f"{run.exchange.personal}), and a head that sites share begins alike at all of them: set it to 'seed', or "
            "let the head be personal."
        )
    if any(phase.contrastive for phase in run.phases):
        raise ValueError(
            f"network.head.start is {run.network.head.start!r}, but heads are fitted before the first round, and here "
            "a phase without labels comes first and changes the encoder: set it to 'seed', or drop that phase."
        )


def _members_have_an_estimator(run: Experiment) -> None:
    chosen, network = run.evaluation, run.network
    if chosen.passes > 1 and network.dropout is None:
        raise ValueError(
            f"evaluation.passes is {chosen.passes}, but the network has no dropout, so all passes would be equal: "
            "set network.dropout, or passes to 1."
        )
    if chosen.passes == 1 and network.exits is None and chosen.least_members > 1:
        raise ValueError(
            f"evaluation.estimator {chosen.estimator!r} asks {chosen.least_members} members or more, but a network "
            "without early exits answers once: set network.exits, or network.dropout and evaluation.passes."
        )
    if run.exchange.personal == "exits" and network.exits is None:
        raise ValueError("exchange.personal is 'exits', but the network has none: set network.exits.")
    if run.exchange.encrypt != "nothing" and network.exits is not None:
        raise ValueError(
            "exchange.encrypt hides the head from the server, but early exits that know the same grades would "
            "travel in the clear: let one of the two be."
        )


def _all_that_trains_with_labels_is_read(run: Experiment) -> None:
    if run.theta.reference_grades is not None and not run.evaluation.evidential:
        raise ValueError(
            f"theta.reference_grades reads u as K / S, but evaluation.estimator {run.evaluation.estimator!r} answers "
            "with another: leave it out, or choose an estimator of evidence."
        )
    if run.sampling.fraction < 1 and run.choice != ChoiceSettings():
        raise ValueError(
            "choice.window averages the figures of rounds, but with sampling.fraction below 1 a run ends with its last "
            "model: leave one of the two out."
        )


def _what_stays_is_not_corrected(run: Experiment) -> None:
    if run.exchange.personal != "everything":
        return
    if run.correction != NoCorrectionSettings():
        raise ValueError(
            f"correction {run.correction.name!r} holds the sites together by what travels, but exchange.personal is "
            "'everything': set correction to 'none', or let something travel."
        )
    if run.aggregation.personal:
        raise ValueError(
            f"aggregation.rule {run.aggregation.rule.name!r} mixes a model per site of what travels, but "
            "exchange.personal is 'everything': set it to 'uniform', or let something travel."
        )


def _temperatures_have_a_calibrator(run: Experiment) -> None:
    if not run.network.calibrator and run.calibration != CalibrationSettings():
        raise ValueError(
            "calibration is set, but a network without a calibrator does not read it: leave it out, or set "
            "network.calibrator."
        )


def _pooled_sites_exchange_nothing(run: Experiment) -> None:
    if run.pooled and run.exchange.personal != "everything":
        raise ValueError("pooled sites train alone: set exchange.personal to 'everything', or pooled to false.")


def _a_twin_differs(run: Experiment) -> None:
    if run.verdict != "twin":
        return
    if not run.supervised:
        raise ValueError("verdict is 'twin', but a run without labels has no answers to compare: leave it out.")
    if run.exchange.personal == "everything":
        raise ValueError("verdict is 'twin', but nothing travels, so each site is its own twin: leave it out.")


def _one_model_for_a_server_half(run: Experiment) -> None:
    if run.aggregation.personal and run.correction.has_server_half:
        raise ValueError(
            f"correction {run.correction.name!r} moves one global model, but aggregation "
            f"{run.aggregation.rule.name!r} keeps one per site: choose another of the two."
        )


def _a_robust_rule_sees_all_that_travels(run: Experiment) -> None:
    robust = run.aggregation.robust
    if not robust.guards:
        return
    if run.correction.has_server_half:
        raise ValueError(
            f"correction {run.correction.name!r} moves the aggregate by a plain mean over all sites, which "
            f"aggregation.robust {robust.name!r} does not guard: choose another of the two."
        )
    if run.exchange.personal == "everything":
        raise ValueError(f"aggregation.robust is {robust.name!r}, but nothing travels: set it to 'none'.")
    if run.quorum < robust.least:
        raise ValueError(
            f"quorum is {run.quorum}, but aggregation.robust {robust.name!r} as it is set needs "
            f"{robust.least} accepted updates per round: set quorum to {robust.least} or more, or "
            "aggregation.robust.hostile lower."
        )


def _what_is_encrypted_is_only_averaged(run: Experiment) -> None:
    if run.exchange.encrypt == "nothing":
        return
    aggregation, correction = run.aggregation, run.correction
    if aggregation.robust.guards or aggregation.personal:
        other = (aggregation.rule if aggregation.personal else aggregation.robust).name
        raise ValueError(
            f"aggregation {other!r} compares what the sites sent, but exchange.encrypt is "
            f"{run.exchange.encrypt!r} and the server cannot read it: choose another of the two."
        )
    if correction.has_server_half:
        raise ValueError(
            f"correction {correction.name!r} sends controls of the head in the clear, which undoes exchange.encrypt"
            ": choose another of the two."
        )


CHECKS: tuple[Callable[[Experiment], None], ...] = (
    _a_recipe_fits_the_phases,
    _phases_are_distinct,
    _a_label_free_phase_has_its_layers,
    _a_travelling_head_has_one_width,
    _sums_train_nothing,
    _images_fit_the_encoder,
    _random_transforms_fit_the_modality,
    _frozen_stages_fit_the_run,
    _a_fitted_head_stays_at_its_site,
    _members_have_an_estimator,
    _all_that_trains_with_labels_is_read,
    _temperatures_have_a_calibrator,
    _pooled_sites_exchange_nothing,
    _a_twin_differs,
    _one_model_for_a_server_half,
    _a_robust_rule_sees_all_that_travels,
    _what_is_encrypted_is_only_averaged,
    _what_stays_is_not_corrected,
)
"""In the order in which they are asked; the first that fails speaks, by a ValueError."""
