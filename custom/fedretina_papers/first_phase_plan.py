"""The plan of encoders that sites pre-train without labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedretina.errors import SettingsError
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.storage import require_sites
from fedretina_papers.choices import plan_of

_STRICT = ConfigDict(frozen=True, extra="forbid")
Clients = Annotated[int, Field(ge=2, le=99)]
_NAME = r"^[a-z][a-z0-9_]{0,23}$"
_START: dict[str, Any] = {"encoder": "efficientnet_lite0", "weights": {"source": "package"}}
_PRETRAINED: dict[str, Any] = {
    "row": "oct_moco_fedavg",
    "classes": None,  # no label is read
    "exchange": {"personal": "head", "batchnorm": "shared_all"},
    "training": {"threads": 1},
}


class EncoderChoice(BaseModel):
    """An encoder that is pre-trained.

    Attributes:
        name: By which a block's rows call it.
        title: In print.
        who: Who pre-trains it: "alone" every site its own, "sites" all of them by a federation, "pooled" all of them
            with their images in one place.
        settings: Of its pre-training, laid over the plan's.
        enough: Rounds after which no call goes on with it; the plan's where None.
        seed: Of its pre-training; the plan's where None.
        clients: As the plan's, which it stands in the place of; the plan's where None.
        after: An encoder before it in the plan that differs in `enough` alone and is enough in no more rounds: this one
            goes on from there, to the bits that it would have from the first round on.
    """

    model_config = _STRICT
    name: str = Field(pattern=_NAME)
    title: str = Field(min_length=1)
    who: Literal["alone", "sites", "pooled"]
    settings: dict[str, Any] = {}
    enough: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=0)
    clients: dict[str, Clients] | None = None
    after: str = ""


class FirstPhasePlan(BaseModel):
    """What is run.

    Attributes:
        name: Name of the study.
        sites: Site file of each site; none for a phantom hospital.
        encoders: In the order of the table. Pre-training sees all of train, and no label.
        minutes: Processor time that a call gives each encoder's pre-training, which is never cut within a round. With 0
            the encoders stay as they stand.
        rounds: Rounds for which a pre-training is laid out, and after which it is done.
        pretrain: Settings of the pre-training, in the shape of `Experiment`.
        clients: How many clients of unlike mixes of grades (Dirichlet, alpha 0.5) the training patients of a site are
            dealt to, by the site, where all pre-train together; a site that is not named is one client. "alone" and
            "pooled" take sites as they are.
        seed: Of pre-training, and of dealing.
        phantom_images: Training images of an average phantom hospital.
        paper: Of the page.
    """

    model_config = _STRICT
    name: str = Field(pattern=_NAME)
    sites: dict[str, Path | None] = Field(min_length=2)
    encoders: tuple[EncoderChoice, ...] = Field(min_length=1)
    minutes: float = Field(ge=0, le=10_000)
    rounds: int = Field(ge=1, le=10_000)
    pretrain: dict[str, Any]
    clients: dict[str, Clients] = {}
    seed: int = Field(default=1, ge=0)
    phantom_images: int = Field(default=160, ge=0)
    paper: Literal["first_phase"] = "first_phase"

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = [one.name for one in self.encoders]
        if len(set(names)) < len(names):
            raise ValueError(f"encoders are {names}: names must differ.")
        for at, one in enumerate(self.encoders):
            before = next((other for other in self.encoders[:at] if other.name == one.after), None)
            apart = dict.fromkeys(("name", "title", "enough", "after"))
            alike = before is not None and one.model_copy(update=apart) == before.model_copy(update=apart)
            if one.after and not (before and alike and self.rounds_of(before) <= self.rounds_of(one)):
                raise ValueError(
                    f"encoder {one.name} goes on after {one.after}: name one before it with the same who, settings, "
                    "seed and clients, that is enough in no more rounds."
                )
        dealt = {site for one in self.encoders for site in self.clients_of(one)}
        if lacking := sorted(dealt - set(self.sites)):
            raise ValueError(f"clients are dealt out of {', '.join(lacking)}: name a --site for each.")
        return self

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> FirstPhasePlan:
        """Check a plan and every run of it before anything trains.

        Raises:
            SettingsError: What is wrong, in one sentence a fault.
        """
        plan = plan_of(cls, settings)
        require_sites(sorted(plan.sites))
        drawn = sorted(site for site, file in plan.sites.items() if file is None)
        if 0 < len(drawn) < len(plan.sites):  # nobody would see them in an encoder
            raise SettingsError(
                f"{', '.join(drawn)} would be phantoms beside real sites: name a --site for each, or none."
            )
        for encoder in plan.encoders:
            plan.pretraining(encoder)
        return plan

    def clients_of(self, encoder: EncoderChoice) -> dict[str, Clients]:
        """How many clients each site is dealt to where this encoder is pre-trained."""
        if encoder.who != "sites":
            return {}
        return self.clients if encoder.clients is None else encoder.clients

    def rounds_of(self, encoder: EncoderChoice) -> int:
        """Rounds after which no call goes on with an encoder."""
        return min(encoder.enough or self.rounds, self.rounds)

    def begins_as(self, encoder: EncoderChoice) -> EncoderChoice:
        """The encoder that the first rounds of this one are called by: itself where it goes on after none."""
        before = next((one for one in self.encoders if one.name == encoder.after), None)
        return encoder if before is None else self.begins_as(before)

    def pretraining(self, encoder: EncoderChoice) -> Experiment:
        """Settings of an encoder's pre-training.

        Raises:
            SettingsError: They cannot be used.
        """
        base = {**_PRETRAINED, "network": {**_START, "contrast": {"layout": "moco_v2"}}}
        named = {
            "name": f"{self.name}_{self.begins_as(encoder).name}",
            "seed": self.seed if encoder.seed is None else encoder.seed,
            "phantom_images": self.phantom_images,
        }
        asked = merged(merged(merged(base, self.pretrain), encoder.settings), named)
        if encoder.who != "sites":
            asked = {**asked, "exchange": {"personal": "everything"}, "pooled": encoder.who == "pooled"}
        phases = [{"name": "pretrain", **phase, "rounds": self.rounds} for phase in asked.get("phases", [{}])]
        return Experiment.resolve({**asked, "phases": phases})
