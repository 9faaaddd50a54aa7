"""How drift between sites is held back."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


class FedProxSettings(BaseModel):
    """Settings of FedProx.

    Attributes:
        mu: Weight of the proximal term; 0 is FedAvg to the last bit. The paper tunes 0.001 to 1; FLARE's own is 0.01.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    mu: float = Field(default=0.01, ge=0, le=100)


class ScaffoldSettings(BaseModel):
    """Settings of SCAFFOLD.

    Attributes:
        update: How a site renews its variate c_i. "mean_grad" is the mean of the raw gradients of the round, weighted
            by the learning rate of each step. "option2" is the paper's Eq. 4 to the letter, from the way the weights
            went; right for plain SGD alone. "option2_fednova" divides that way by what momentum makes of it, a
            good approximation.
        place: Where the correction enters. "gradient" adds c - c_i before the optimiser's step; "weights" takes
            lr (c - c_i) off after it, so that momentum does not amplify and Adam does not normalise it away.
            "auto" is "gradient" for SGD and "weights" for Adam.
        eta_g: Server's step from the last aggregate to the sites' mean; 1 is the mean itself.
        max_ratio: Longest correction in a step, in lengths of that step's gradient (over all corrected parameters).
            A guard: public codes report divergence.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    travels: ClassVar[bool] = True
    has_server_half: ClassVar[bool] = True
    update: Literal["mean_grad", "option2", "option2_fednova"] = "mean_grad"
    place: Literal["auto", "gradient", "weights"] = "auto"
    eta_g: float = Field(default=1.0, gt=0, le=10)
    max_ratio: float = Field(default=10.0, gt=0)


class FedDynSettings(BaseModel):
    """Settings of FedDyn.

    Attributes:
        alpha: Strength. 0 switches the correction off at site and server: FedAvg to the last bit. The limit is not
            smooth, since the server adds the mean drift at any alpha above 0.
        by_images: Divide alpha by p_i = n_i / mean n, as the official code does; a site's first round counts as
            p_i = 1, because the server learns n_i with its first update.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    has_server_half: ClassVar[bool] = True
    alpha: float = Field(default=0.01, ge=0, le=100)
    by_images: bool = True


class FedDcSettings(BaseModel):
    """Settings of FedDC.

    Attributes:
        alpha: Weight of the proximal term; the official code uses 0.1 for MNIST and 0.01 for CIFAR. 0 switches the
            whole correction off: FedAvg to the last bit.
        by_images: Divide by p_i = n_i / mean n, as the official code does; a site's first round counts as p_i = 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    travels: ClassVar[bool] = True
    has_server_half: ClassVar[bool] = True
    alpha: float = Field(default=0.01, ge=0, le=100)
    by_images: bool = True


class MoonSettings(BaseModel):
    """Settings of MOON.

    Attributes:
        mu: Weight of the contrast; 0 is FedAvg to the last bit. The paper tunes 0.1 to 10.
        temperature: T of the contrast, 0.5 in the paper.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    mu: float = Field(default=1.0, ge=0, le=100)
    temperature: float = Field(default=0.5, gt=0, le=10)


CorrectionName = Literal["none", "fedprox", "scaffold", "feddyn", "feddc", "moon"]


class CorrectionSettings(BaseModel):
    """How drift between sites is held back.

    Attributes:
        name: "none", "fedprox" (a proximal term), "scaffold" (control variates), "feddyn" and "feddc" (a proximal
            term with the site's drift), "moon" (a contrast of features). Settings of the others are not read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: CorrectionName = "none"
    fedprox: FedProxSettings = FedProxSettings()
    scaffold: ScaffoldSettings = ScaffoldSettings()
    feddyn: FedDynSettings = FedDynSettings()
    feddc: FedDcSettings = FedDcSettings()
    moon: MoonSettings = MoonSettings()

    @property
    def own(self) -> BaseModel | None:
        """The settings of the chosen correction; None for "none"."""
        found: BaseModel | None = getattr(self, self.name, None)
        return found

    @property
    def travels(self) -> bool:
        """Whether a control per parameter goes beside the weights, both ways."""
        return bool(getattr(self.own, "travels", False))

    @property
    def has_server_half(self) -> bool:
        """Whether the server moves the aggregate beyond the mean of the sites."""
        return bool(getattr(self.own, "has_server_half", False))
