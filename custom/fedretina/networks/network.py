"""The network of a site: normalisation, shared encoder, personal head, and early exits between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor, nn

from fedretina.errors import SettingsError, TrainingError
from fedretina.networks.contrast import ContrastHead
from fedretina.networks.dropout import PassDropout
from fedretina.networks.encoder import Encoder
from fedretina.networks.gate import Gate
from fedretina.networks.heads import Exits
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
_TOGETHER = {"cpu": 8, "cuda": 32}
"""Images that pass the frozen stages at once, by kind of device. It is fixed, and a smaller batch is filled up, because
the last bit of a sum may depend on the size of the batch: so an image's outputs do not depend on what it comes with."""


def _in_full(x: Tensor) -> AbstractContextManager[object]:
    """No autocast for what runs on x; the meta device, on which costs are counted, has none to turn off."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


class Network(nn.Module):
    """Encoder and head, on images in [0, 1].

    The normalisation stands in buffers that are not part of the state, so `state_dict` holds `encoder.*`, `head.*` and,
    where there is one, `projector.*`, `calibrator.*`, `contrast.*`, `exits.*` and `gate.*` only.

    Attributes:
        encoder: The part that sites share.
        projector: Two layers between encoder and head, or None.
        head: The part that knows the site's grades.
        calibrator: Temperatures per image, or None.
        contrast: Projector and predictor of contrastive training, beside the head, or None.
        exits: Early exits, or None.
        dropouts: Dropout by number of the stage that it follows; empty for none.
        gate: Tells images that are unlike the site's own, where an estimator reads it; else None. It never travels.
        space: Turns the classes of a head that all sites share into the site's own grades; None where they are equal.
        normalisation: The normalisation in use.
        frozen: How many steps of the encoder (`Encoder.steps`) are frozen; what they give is rounded to float16, so
            that it may be kept and read instead of being computed anew.
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
        frozen: int = 0,
        frozen_statistics: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.head = head
        self.calibrator = calibrator
        self.contrast = contrast
        self.exits = exits
        self.dropouts = nn.ModuleDict({str(stage): layer for stage, layer in dropouts.items()})
        self.gate: Gate | None = None
        self.space: LabelSpace | None = None
        self.normalisation: Normalisation = normalisation
        self.provenance: Provenance | None = None
        self.frozen = self._freeze(frozen, frozen_statistics)
        self._map: tuple[int, ...] = ()  # shape of what the frozen stages give for an image
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

    def frozen_keys(self) -> frozenset[str]:
        """Keys of the state that are frozen: they never change, so they neither travel nor are they kept by round."""
        return frozenset(f"encoder.{key}" for key in self.encoder.frozen_keys())

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """As torch's; frozen stages take no gradient."""
        super().requires_grad_(requires_grad)
        self.encoder.requires_grad_(requires_grad)
        return self

    @torch.no_grad()
    def frozen_outputs(self, x: Tensor) -> Tensor:
        """Return what the frozen stages make of images `[B, 3, H, W]` in [0, 1]; all else takes it in their place.

        An image's outputs have the same bits in any batch.

        Returns:
            float16 `[B, L]`: the average maps that early exits within the frozen part read, then the last frozen map,
            row by row, or the pooled features where the whole encoder is frozen. Values beyond float16 are cut to its
            largest.
        """
        size = _TOGETHER.get(x.device.type, 1)
        with _in_full(x):
            return torch.cat([self._frozen_piece(part, size) for part in torch.split(x, size)])

    @torch.no_grad()
    def frozen_width(self, x: Tensor) -> int:
        """Return L of `frozen_outputs` for images like x `[1, 3, H, W]`."""
        with _in_full(x):
            return self._frozen_piece(x, 1).shape[1]

    def frozen_is_given(self, shape: tuple[int, ...]) -> None:
        """Say which shape the last frozen output of an image has, where only `frozen_outputs` of elsewhere come in."""
        self._map = shape

    def _frozen_piece(self, x: Tensor, size: int) -> Tensor:
        missing = x.new_zeros(size - len(x), *x.shape[1:])
        rows = self.unrounded_outputs(torch.cat([x, missing]) if len(missing) else x)[: len(x)]
        most = torch.finfo(torch.float16).max
        return rows.clamp(-most, most).half()

    def unrounded_outputs(self, x: Tensor) -> Tensor:
        """As `frozen_outputs`, float32 and all images in one piece: for answers of which nothing is kept.

        Prediction and exported models take these. Two programs that compute in float32 agree to some 1e-6; where a
        number lies on the edge, rounding to float16 makes 1e-3 of it, and answers then differ by up to 3e-4.
        """
        averages: list[Tensor] = []

        def visit(number: int, seen: Tensor) -> Tensor:
            if number in self._exits_within():
                averages.append(self.encoder.average(seen))
            return seen

        last = self.encoder.span(self.normalised(x), 0, self.frozen, visit)
        self._map = tuple(last.shape[1:])
        return torch.cat([*averages, last.flatten(1)], dim=1)

    def _exits_within(self) -> tuple[int, ...]:
        """Exits that read a map from before the last frozen output."""
        if self.exits is None:
            return ()
        pooled = self.frozen == self.encoder.steps
        return tuple(stage for stage in self.exits.after if stage < self.encoder.frozen - (not pooled))

    def _freeze(self, stages: int, statistics: bool) -> int:
        self.encoder.freeze(stages, statistics)
        passed = sorted(int(stage) for stage in self.dropouts if int(stage) < stages - 1)
        if passed:
            raise SettingsError(
                f"network.dropout follows stage {passed[0]}, but the first {stages} stages are frozen and give one "
                f"output for an image: name stages from {stages - 1} on in network.dropout.after, or freeze fewer."
            )
        # The average is frozen with the last stage, unless dropout stands between the two.
        return stages + (stages == len(self.encoder.stages) and str(stages - 1) not in self.dropouts)

    def features(self, x: Tensor, averages: list[Tensor] | None = None) -> Tensor:
        """Return what enters the head, `[B, F]`, of images `[B, 3, H, W]` in [0, 1]: pooled, projected if need be.

        Args:
            x: The images, or their `frozen_outputs`, or those unrounded.
            averages: Takes the average `[B, C]` that each early exit reads on the way, where it is given.
        """

        def visit(number: int, seen: Tensor) -> Tensor:
            if str(number) in self.dropouts:
                seen = self.dropouts[str(number)](seen)
            if averages is not None and self.exits is not None and number in self.exits.after:
                averages.append(self.encoder.average(seen))
            return seen

        if not self.frozen:
            out: Tensor = self.encoder(self.normalised(x), visit)
        else:
            *within, last = self._outputs(x if x.dim() == 2 else self.frozen_outputs(x))
            if averages is not None:
                averages.extend(within)
            if self.frozen < self.encoder.steps:
                last = visit(self.frozen - 1, last)
            out = self.encoder(last, visit, self.frozen)
        return out if self.projector is None else self.projector(out)

    def _outputs(self, rows: Tensor) -> list[Tensor]:
        """What `unrounded_outputs` put side by side, float32: averages for exits `[B, C]`, then the last output."""
        widths = [self.encoder.widths[stage] for stage in self._exits_within()]
        *averages, last = torch.split(rows.float(), [*widths, math.prod(self._map)], dim=1)
        return [*averages, last.reshape(rows.shape[0], *self._map)]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images `[B, 3, H, W]` in [0, 1], or of their `frozen_outputs`.

        Returns:
            `[B, K]`; with early exits `[B, M + 1, K]`, the final head's last. With a gate `[B, 2, K]`: the distance K
            times over, then the head's, so that whoever passes members on passes both.
        """
        if self.gate is not None:
            features = self.features(x)
            logits = self.logits(features)
            return torch.stack([self.gate(features).unsqueeze(1).expand_as(logits), logits], dim=1)
        averages: list[Tensor] = []
        return self.answers(self.features(x, averages), averages)

    def answers(self, features: Tensor, averages: Sequence[Tensor]) -> Tensor:
        """As `forward` of a network without a gate, given what `features` returns and the averages that it takes."""
        last = self.logits(features)
        if self.exits is None:
            return last
        early = map(self.exits.answer, self.exits.after, averages)
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
