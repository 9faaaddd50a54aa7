"""How drift between sites is held back: the settings of each correction, and what its class can do.

What a correction sends and whether the server has a part in it is said here, where checks of a run can read it without
torch; `corrections.correction` refuses a class that does otherwise.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedretina.settings.choice import Choice
from fedretina.settings.training import OptimiserSettings


class CorrectionSettings(Choice):
    """How drift between sites is held back.

    Attributes:
        travels: Whether a control per parameter goes beside the weights, both ways.
        has_server_half: Whether the server moves the aggregate beyond the mean of the sites.
        contrasts: Whether it contrasts features itself, so that it cannot correct a label-free phase.
    """

    default: ClassVar[str | None] = "none"
    travels: ClassVar[bool] = False
    has_server_half: ClassVar[bool] = False
    contrasts: ClassVar[bool] = False
    name: str

    def unfit(self, optimiser: OptimiserSettings) -> str | None:
        """Why it would be wrong with an optimiser, in a sentence; None where it is not."""
        return None


class NoCorrectionSettings(CorrectionSettings):
    """No correction.

    Attributes:
        name: "none".
    """

    name: Literal["none"] = "none"


class FedProxSettings(CorrectionSettings):
    """FedProx: a proximal term.

    Attributes:
        name: "fedprox".
        mu: Weight of the proximal term; 0 is FedAvg to the last bit. The paper tunes 0.001 to 1; FLARE's own is 0.01.
    """

    name: Literal["fedprox"] = "fedprox"
    mu: float = Field(default=0.01, ge=0, le=100)


class ScaffoldSettings(CorrectionSettings):
    """SCAFFOLD: control variates.

    Attributes:
        name: "scaffold".
        update: How a site renews its variate c_i. "mean_grad" is the mean of the raw gradients of the round, weighted
            by the learning rate of each step. "option2" is the paper's Eq. 4 to the letter, from the way the weights
            went; right for plain SGD alone. "option2_fednova" divides that way by what momentum makes of it, a
            good approximation.
        place: Where the correction enters. "gradient" adds c - c_i to the gradient before the optimiser's moments, as
            in the paper, under every optimiser. "weights" takes lr (c - c_i) off after the step, as NIID-Bench and
            FLARE's helper do: the same for plain SGD, and refused under Adam, beside whose step nothing is left of it.
        eta_g: Server's step from the last aggregate to the sites' mean; 1 is the mean itself.
        max_ratio: Longest correction in a step, in lengths of that step's gradient (over all corrected parameters).
            A guard: public codes report divergence.
    """

    travels: ClassVar[bool] = True
    has_server_half: ClassVar[bool] = True
    name: Literal["scaffold"] = "scaffold"
    update: Literal["mean_grad", "option2", "option2_fednova"] = "mean_grad"
    place: Literal["gradient", "weights"] = "gradient"
    eta_g: float = Field(default=1.0, gt=0, le=10)
    max_ratio: float = Field(default=10.0, gt=0, allow_inf_nan=False)

    def unfit(self, optimiser: OptimiserSettings) -> str | None:
        """See `CorrectionSettings.unfit`."""
        exact = optimiser.optimizer == "sgd" and optimiser.momentum == 0 and optimiser.weight_decay == 0
        if self.update == "option2" and not exact:
            return (
                "correction.update 'option2' is right for plain SGD alone, but the optimiser has momentum, decay or is "
                "Adam: use 'mean_grad'."
            )
        if self.update == "option2_fednova" and optimiser.optimizer != "sgd":
            return "correction.update 'option2_fednova' is for SGD with momentum: use 'mean_grad' with Adam."
        if self.place == "weights" and optimiser.optimizer != "sgd":
            return (
                "correction.place 'weights' is for SGD: Adam's step does not shrink with the gradient, so that nothing "
                "is left of the correction beside it; use 'gradient'."
            )
        return None


class FedDynSettings(CorrectionSettings):
    """FedDyn: a proximal term with the site's drift.

    Attributes:
        name: "feddyn".
        alpha: Strength. 0 switches the correction off at site and server: FedAvg to the last bit. The limit is not
            smooth, since the server adds the mean drift at any alpha above 0.
        by_images: Divide alpha by p_i = n_i / mean n, as the official code does; a site's first round counts as
            p_i = 1, because the server learns n_i with its first update.
    """

    has_server_half: ClassVar[bool] = True
    name: Literal["feddyn"] = "feddyn"
    alpha: float = Field(default=0.01, ge=0, le=100)
    by_images: bool = True


class FedDcSettings(CorrectionSettings):
    """FedDC: a proximal term with the site's drift, and a gradient correction.

    Attributes:
        name: "feddc".
        alpha: Weight of the proximal term; the official code uses 0.1 for MNIST and 0.01 for CIFAR. 0 switches the
            whole correction off: FedAvg to the last bit. It alone damps the drift, so raise it towards 1 where the
            optimiser's state is kept over the rounds, or `correction_ratio` grows.
        by_images: Divide by p_i = n_i / mean n, as the official code does; a site's first round counts as p_i = 1.
    """

    travels: ClassVar[bool] = True
    has_server_half: ClassVar[bool] = True
    name: Literal["feddc"] = "feddc"
    alpha: float = Field(default=0.01, ge=0, le=100)
    by_images: bool = True


class MoonSettings(CorrectionSettings):
    """MOON: a contrast of features.

    Attributes:
        name: "moon".
        mu: Weight of the contrast; 0 is FedAvg to the last bit. The paper tunes 0.1 to 10.
        temperature: T of the contrast, 0.5 in the paper.
    """

    contrasts: ClassVar[bool] = True
    name: Literal["moon"] = "moon"
    mu: float = Field(default=1.0, ge=0, le=100)
    temperature: float = Field(default=0.5, gt=0, le=10)
