"""What a site minimises."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from fedretina.errors import SettingsError
from fedretina.settings.choice import Choice

KlSchedule = Literal["linear_rounds", "linear_steps", "official", "paper_pace"]


TAU = 0.05
"""Temperature of the warmed belief where the objective has none of its own: the paper's."""


class ObjectiveSettings(Choice):
    """Which objective a site minimises; "tweu" where a file names none: the method of this package's first paper."""

    default: ClassVar[str | None] = "tweu"
    name: str


class CrossEntropySettings(ObjectiveSettings):
    """Cross entropy (BC in FedUAA's Table 2).

    Attributes:
        name: "cross_entropy".
    """

    name: Literal["cross_entropy"] = "cross_entropy"


class EvidentialSettings(ObjectiveSettings):
    """The evidential loss without warming (EU in FedUAA's Table 2).

    Attributes:
        name: "evidential".
        kl_anneal: Schedule of lambda, as for "tweu".
    """

    name: Literal["evidential"] = "evidential"
    kl_anneal: KlSchedule = "linear_rounds"


class TweuSettings(ObjectiveSettings):
    """TWEU, the temperature-warmed evidential objective, each setting with the reason for its default.

    Attributes:
        name: "tweu".
        tau: Temperature of the warmed belief, above 0. 0.05: the paper (section 4) and the official code
            (hard-coded) agree. Belief lies in [0, 1), so the warmed logits span 0 to 20. The same authors'
            UIOS code anneals tau; FedUAA does not, and neither do we.
        kl_anneal: Schedule of lambda, see `kl_weight`. "linear_rounds": the paper grows lambda from 0 to 1
            "with the number of training iterations", the official code steps it once a round as t / (T + 1)
            and reaches neither end. We step once a round like the code, so that all sites of a round minimise
            the same function whatever their size, and keep the paper's two ends. "official" repeats the code.
            "paper_pace" suits runs that are far shorter than the paper's.
        warmed_weight: Weight of L_tce, 0 or above. 1.0: the sum of Eq. 4 and of the official code. 0 gives
            the plain evidential objective.
    """

    name: Literal["tweu"] = "tweu"
    tau: float = TAU
    kl_anneal: KlSchedule = "linear_rounds"
    warmed_weight: float = 1.0

    @field_validator("tau")
    @classmethod
    def _tau_above_zero(cls, tau: float) -> float:
        if not (math.isfinite(tau) and tau > 0):
            raise SettingsError(
                f"tau is {tau}; it divides the belief and must be a finite number above 0. The paper uses 0.05."
            )
        return tau

    @field_validator("warmed_weight")
    @classmethod
    def _weight_not_negative(cls, weight: float) -> float:
        if not (math.isfinite(weight) and weight >= 0):
            raise SettingsError(f"warmed_weight is {weight}; it must be a finite number, 0 or above. The paper uses 1.")
        return weight


class FocalSettings(ObjectiveSettings):
    """The focal loss (FedEE and FLamby on dermoscopy).

    Attributes:
        name: "focal".
        gamma: How fast sure answers stop counting, 0 to 10; 0 is the weighted cross entropy, 2 the usual choice and
            FLamby's.
        alpha: Weight of each class in the order of the grades, above 0; none for 1 each. FLamby's for the eight of
            Fed-ISIC2019 are 5.58, 2.05, 7.02, 26.12, 9.54, 101.07, 92.52, 38.34, about the inverse of each one's share
            over all centres. A job that names weights runs over sites that have as many grades.
    """

    name: Literal["focal"] = "focal"
    gamma: float = Field(default=2.0, ge=0, le=10)
    alpha: tuple[float, ...] | None = None

    @field_validator("alpha")
    @classmethod
    def _weights_above_zero(cls, alpha: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if alpha is not None and (len(alpha) < 2 or not all(math.isfinite(one) and one > 0 for one in alpha)):
            raise ValueError(f"alpha is {list(alpha)}: give a finite weight above 0 for each grade, or leave it out.")
        return alpha
