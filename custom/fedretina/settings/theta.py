"""How a site finds its threshold theta."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import PlainSerializer, field_validator

from fedretina.errors import SettingsError
from fedretina.settings.choice import Choice


class ThetaSource(Choice):
    """Where (u, wrong) of theta come from.

    Attributes:
        split: The split that an extra pass in evaluation mode reads, "train" (as far as the phase may use its labels)
            or "val"; None for the forward passes of the training itself.
    """

    default: ClassVar[str | None] = "train_online"
    split: ClassVar[Literal["train", "val"] | None] = None
    name: str


class TrainOnlineSource(ThetaSource):
    """The forward passes of the local epoch, as in FedUAA's code.

    Attributes:
        name: "train_online"; the paper's Algorithm 1 asks before the update, its text after the epoch.
    """

    name: Literal["train_online"] = "train_online"


class TrainCleanSource(ThetaSource):
    """An extra pass over the training split, in evaluation mode.

    Attributes:
        name: "train_clean".
    """

    split: ClassVar[Literal["train", "val"] | None] = "train"
    name: Literal["train_clean"] = "train_clean"


class ValidationSource(ThetaSource):
    """The validation split, the better choice once a site has learned its training split by heart.

    Where fewer patients than `data.min_count` stand behind it, nothing of it leaves, and theta is the fallback.

    Attributes:
        name: "validation".
    """

    split: ClassVar[Literal["train", "val"] | None] = "val"
    name: Literal["validation"] = "validation"


def _by_name(source: ThetaSource) -> Any:
    """A source without settings of its own is stored as its name."""
    stored = source.model_dump()
    return stored["name"] if set(stored) == {"name"} else stored


class ThetaSettings(Choice):
    """How a site finds its threshold theta; each default has its reason.

    Attributes:
        source: Where (u, wrong) come from.
        reference_grades: u = K / S grows with the number of grades K where the evidence E = S - K is the same, so UAW
            favours sites with many grades. With a number here, u is read as if the site had so many:
            u' = k / (k + E). Refused where the estimator's u is no K / S. None: as in the paper.
        largest: Largest theta that the rule can give: an observed u.
    """

    key: ClassVar[str] = "rule"
    default: ClassVar[str | None] = "youden"
    largest: ClassVar[float] = 1.0
    rule: str
    source: Annotated[ThetaSource, PlainSerializer(_by_name)] = TrainOnlineSource()
    reference_grades: int | None = None

    @field_validator("reference_grades")
    @classmethod
    def _two_grades_or_more(cls, grades: int | None) -> int | None:
        if grades is not None and grades < 2:
            raise SettingsError(f"reference_grades is {grades}; a scheme has 2 grades or more. Leave it out for none.")
        return grades


class YoudenSettings(ThetaSettings):
    """The rule of this package: the observed uncertainty that maximises Youden's J.

    Attributes:
        rule: "youden".
        fallback: theta when the data give none. "previous": the site's last theta, 0.5 if there is none; a
            site that has no errors this round has not changed in kind. "half": 0.5, as the official code.
            "median_u": the median of u, 0.5 where that is undefined.
        min_errors: Least number of wrong answers, and of right ones, for theta to count as measured. 5: with
            fewer, a single image moves it. The paper has no such rule.
        smoothing: Weight of the previous theta in a moving average, in [0, 1). 0: off, as in the paper. It
            acts on measured values alone; a fallback stands as it is.
    """

    rule: Literal["youden"] = "youden"
    fallback: Literal["previous", "half", "median_u"] = "previous"
    min_errors: int = 5
    smoothing: float = 0.0

    @field_validator("min_errors")
    @classmethod
    def _at_least_one(cls, count: int) -> int:
        if count < 1:
            raise SettingsError(f"min_errors is {count}; a ROC curve needs a wrong and a right answer. Give 1 or more.")
        return count

    @field_validator("smoothing")
    @classmethod
    def _below_one(cls, weight: float) -> float:
        if not 0 <= weight < 1:
            raise SettingsError(
                f"smoothing is {weight}; it is the weight of the previous theta and must lie in [0, 1). "
                "0 switches it off."
            )
        return weight


class OfficialSettings(ThetaSettings):
    """The rule of FedUAA's released code (`uncertainty.theta.official_theta`), which may give one more than any u.

    Attributes:
        rule: "official".
    """

    largest: ClassVar[float] = 2.0
    rule: Literal["official"] = "official"
