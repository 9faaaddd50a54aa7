"""How a site finds its threshold theta."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from fedretina.errors import SettingsError


class ThetaSettings(BaseModel):
    """Settings of theta, each with the reason for its default.

    Attributes:
        source: Where (u, wrong) come from. "train_online": the forward passes of the local epoch, as in the
            official code (the paper's Algorithm 1 asks before the update, its text after the epoch).
            "train_clean": an extra pass over the training split, in evaluation mode. "validation": the
            validation split, the better choice once a site has learned its training split by heart.
        fallback: theta when the data give none. "previous": the site's last theta, 0.5 if there is none; a
            site that has no errors this round has not changed in kind. "half": 0.5, as the official code.
            "median_u": the median of u, 0.5 where that is undefined.
        min_errors: Least number of wrong answers, and of right ones, for theta to count as measured. 5: with
            fewer, a single image moves it. The paper has no such rule.
        smoothing: Weight of the previous theta in a moving average, in [0, 1). 0: off, as in the paper. It
            acts on measured values alone; a fallback stands as it is.
        reference_grades: u = K / S grows with the number of grades K where the evidence E = S - K is the same, so UAW
            favours sites with many grades. With a number here, u is read as if the site had so many:
            u' = k / (k + E). None: as in the paper.
        rule: "youden": the rule of this package. "official": `official_theta`; fallback and min_errors are
            then not read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Literal["train_online", "train_clean", "validation"] = "train_online"
    fallback: Literal["previous", "half", "median_u"] = "previous"
    min_errors: int = 5
    smoothing: float = 0.0
    reference_grades: int | None = None
    rule: Literal["youden", "official"] = "youden"

    @property
    def largest(self) -> float:
        """Largest theta that the rule can give: an observed u, or, as the official code has it, one more."""
        return 2.0 if self.rule == "official" else 1.0

    @field_validator("min_errors")
    @classmethod
    def _at_least_one(cls, count: int) -> int:
        if count < 1:
            raise SettingsError(f"min_errors is {count}; a ROC curve needs a wrong and a right answer. Give 1 or more.")
        return count

    @field_validator("reference_grades")
    @classmethod
    def _two_grades_or_more(cls, grades: int | None) -> int | None:
        if grades is not None and grades < 2:
            raise SettingsError(f"reference_grades is {grades}; a scheme has 2 grades or more. Leave it out for none.")
        return grades

    @field_validator("smoothing")
    @classmethod
    def _below_one(cls, weight: float) -> float:
        if not 0 <= weight < 1:
            raise SettingsError(
                f"smoothing is {weight}; it is the weight of the previous theta and must lie in [0, 1). "
                "0 switches it off."
            )
        return weight

    @model_validator(mode="after")
    def _official_is_not_smoothed(self) -> ThetaSettings:
        if self.rule == "official" and self.smoothing > 0:
            raise SettingsError(
                f"rule is 'official' and smoothing is {self.smoothing}; the official code does not smooth. "
                "Set smoothing to 0 or rule to 'youden'."
            )
        return self
