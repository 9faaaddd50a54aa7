"""The network of a site: normalisation, shared encoder, personal head, and early exits between them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from fedretina.errors import SettingsError, TrainingError
from fedretina.networks.contrast import ContrastHead
from fedretina.networks.dropout import PassDropout
from fedretina.networks.encoder import Encoder
from fedretina.networks.exits import Exits
from fedretina.networks.label_space import LabelSpace
from fedretina.networks.weights import Provenance
from fedretina.settings.encoder import Normalisation

MEAN_STD: dict[Normalisation, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
LOW, HIGH = 0.05, 20.0
"""Bounds of a temperature, as for one temperature per site."""


class Network(nn.Module):
    """Encoder and head, on images in [0, 1].

    The normalisation stands in buffers that are not part of the state, so `state_dict` holds `encoder.*`, `head.*` and,
    where there is one, `projector.*`, `calibrator.*`, `contrast.*` and `exits.*` only.

    Attributes:
        encoder: The part that sites share.
        projector: Two layers between encoder and head, or None.
        head: The part that knows the site's grades.
        calibrator: Temperatures per image, or None.
        contrast: Projector and predictor of contrastive training, beside the head, or None.
        exits: Early exits, or None.
        dropouts: Dropout by number of the stage that it follows; empty for none.
        space: Turns the classes of a head that all sites share into the site's own grades; None where they are equal.
        normalisation: The normalisation in use.
        provenance: Where the encoder's start came from; None before weights were considered (meta).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: Encoder,
        head: nn.Module,
        normalisation: Normalisation,
        projector: nn.Module | None = None,
        calibrator: Calibrator | None = None,
        contrast: ContrastHead | None = None,
        exits: Exits | None = None,
        dropouts: Mapping[int, PassDropout] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.head = head
        self.calibrator = calibrator
        self.contrast = contrast
        self.exits = exits
        self.dropouts = nn.ModuleDict({str(stage): layer for stage, layer in dropouts.items()})
        self.space: LabelSpace | None = None
        self.normalisation: Normalisation = normalisation
        self.provenance: Provenance | None = None
        mean, std = MEAN_STD[normalisation]
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def normalised(self, x: Tensor) -> Tensor:
        """Return the images as the encoder expects them.

        Args:
            x: Images `[B, 3, H, W]` in [0, 1], floating point.

        Raises:
            TrainingError: The images are not floating point, or not RGB.
        """
        if x.dim() != 4 or x.shape[1] != 3 or not x.is_floating_point():
            raise TrainingError(
                f"The network needs floating point images [B, 3, H, W] in [0, 1], but got {x.dtype} of shape "
                f"{tuple(x.shape)}; scale cached bytes by 1/255 and stack channels first."
            )
        return x if self.normalisation == "none" else (x - self.mean) / self.std

    def features(self, x: Tensor, early: list[Tensor] | None = None) -> Tensor:
        """Return what enters the head, `[B, F]`, of images `[B, 3, H, W]` in [0, 1]: pooled, projected if need be.

        Args:
            x: The images.
            early: Takes the logits `[B, K]` of each early exit on the way, where it is given.
        """

        def visit(number: int, seen: Tensor) -> Tensor:
            if str(number) in self.dropouts:
                seen = self.dropouts[str(number)](seen)
            if early is not None and self.exits is not None:
                early.extend(self.exits.answers(number, seen))
            return seen

        out: Tensor = self.encoder(self.normalised(x), visit)
        return out if self.projector is None else self.projector(out)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images `[B, 3, H, W]` in [0, 1].

        Returns:
            `[B, K]`; with early exits `[B, M + 1, K]`, the final head's last.
        """
        if self.exits is None:
            return self.logits(self.features(x))
        early: list[Tensor] = []
        last = self.logits(self.features(x, early))
        return torch.stack([*(one if self.space is None else self.space(one) for one in early), last], dim=1)

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits `[B, K]` of features `[B, F]`."""
        out: Tensor = self.head(features)
        if self.space is not None:
            out = self.space(out)
        return out if self.calibrator is None else out / self.calibrator(features)

    def embedded(self, x: Tensor) -> Tensor:
        """Return the embeddings `[B, D]` of images `[B, 3, H, W]` in [0, 1], for a contrast; their length is not 1.

        Raises:
            SettingsError: The network has no contrastive head.
        """
        if self.contrast is None:
            raise SettingsError("contrastive training needs a projector: set network.contrast.")
        out: Tensor = self.contrast.projector(self.encoder(self.normalised(x)))
        return out


class Calibrator(nn.Module):
    """T(x) = w . f(x) + b within `LOW` to `HIGH`, from the features f(x) that enter the head.

    It holds buffers, no parameters: no optimiser moves it. The server solves for it once, after training
    (`aggregation.temperatures`); until then T(x) is 1 and divides no bit away. It never changes which class is the
    largest.

    Args:
        features: Length F of the features.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(features))
        self.register_buffer("bias", torch.ones(()))

    def forward(self, features: Tensor) -> Tensor:
        """Return the temperatures `[B, 1]` of features `[B, F]`."""
        return (features @ self.weight + self.bias).clamp(LOW, HIGH).unsqueeze(1)
