"""What of a model's card decides an answer, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedretina.errors import SettingsError, StateError
from fedretina.evaluation.doubt import Doubt
from fedretina.report.card import CARD_FORMAT
from fedretina.settings.encoder import Normalisation
from fedretina.settings.experiment import Experiment
from fedretina.settings.scheme import GradingScheme


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class _Temperature(_Part):
    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Threshold(_Part):
    threshold: Annotated[float, Field(ge=0, le=1)]


class _Look(_Part):
    gate: dict[str, Any]


class _Doubt(_Part):
    used: Doubt = "estimator"


class _Promise(_Part):
    threshold: Annotated[float, Field(ge=0, le=1)] | None


class _Sets(_Part):
    limit: float | None
    wrong: float
    patients: int
    ordered: bool


class Operating(_Part):
    """What of a card decides an answer."""

    settings: Experiment
    scheme: GradingScheme
    temperature: _Temperature
    referral: _Threshold
    look: _Look | None = None  # not on cards from before there was a gate
    doubt: _Doubt = _Doubt()
    promise: _Promise = _Promise(threshold=None)
    sets: _Sets | None = None
    model_digest: str
    normalisation: Normalisation | None = None  # not on older cards, whose settings tell it
    transforms_digest: str


def understood(card: dict[str, Any], folder: Path) -> Operating:
    """What of a card decides an answer.

    Raises:
        StateError: It is of another version, or cannot be used.
    """
    version = f"predict with the version that made it, fedretina {card.get('fedretina', 'unknown')}"
    if card.get("format") != CARD_FORMAT:
        raise StateError(
            f"the card in {folder} has format {card.get('format')}, this version reads {CARD_FORMAT}: {version}."
        )
    try:
        operating = Operating.model_validate(card)
    except (ValidationError, SettingsError) as error:
        # The first fault only, and not the input, which is the whole card.
        what = (
            "; ".join(".".join(map(str, fault["loc"])) for fault in error.errors()[:3])
            if isinstance(error, ValidationError)
            else str(error)
        )
        raise StateError(f"the card in {folder} cannot be used ({what}): restore it, or {version}.") from error
    if operating.settings.images.digest() != operating.transforms_digest:
        raise StateError(
            f"the model in {folder} learned from images that another version prepared in another way: {version}."
        )
    return operating
