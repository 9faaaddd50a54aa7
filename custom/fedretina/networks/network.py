"""The network of a site: normalisation, shared encoder, personal head."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedretina.errors import SettingsError, TrainingError
from fedretina.networks.calibrator import Calibrator
from fedretina.networks.contrast import ContrastHead, ContrastSettings
from fedretina.networks.encoder import Encoder, EncoderName, Normalisation
from fedretina.networks.encoders import ENCODERS
from fedretina.networks.heads import HeadSettings, build_head
from fedretina.networks.label_space import LabelSpace
from fedretina.networks.weights import PACKAGED, Provenance, WeightsSettings, load_encoder_weights, trained_with

MEAN_STD: dict[Normalisation, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


class NetworkSettings(BaseModel):
    """What answers.

    Attributes:
        encoder: Architecture of the shared part. FedUAA uses "resnet50", the OCT paper "efficientnet_b4"; "vit_small"
            needs images whose side is a multiple of 16.
        weights: Where the encoder starts.
        projector: Width of a two-layer projection between encoder and head, which travels; 256 in MOON. None for none.
        head: Layers of the personal part.
        calibrator: Whether a temperature for each image, told from its features, divides the logits. The sites and
            the server find it after training (multi-domain temperature scaling).
        contrast: Projector and predictor of contrastive pre-training, which travel; None for none. They hang on the
            encoder beside the head: no answer passes through them.
        normalise: How images in [0, 1] are normalised. "auto" is what the weights were trained with, as an exported
            encoder's file says, and "half" when they come from the seed. The official FedUAA code feeds ImageNet
            weights with images that are not normalised; "none" reproduces that.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    encoder: EncoderName = "resnet18"
    weights: WeightsSettings = Field(default_factory=WeightsSettings)
    projector: int | None = Field(default=None, ge=2, le=8192)
    head: HeadSettings = Field(default_factory=HeadSettings)
    calibrator: bool = False
    contrast: ContrastSettings | None = None
    normalise: Literal["auto", "none", "imagenet", "half"] = "auto"

    @model_validator(mode="after")
    def _package_has_the_encoder(self) -> NetworkSettings:
        if self.weights.source == "package" and self.encoder not in PACKAGED:
            raise ValueError(
                f'weights.source "package" exists for {", ".join(sorted(PACKAGED))} only, but the encoder is '
                f'{self.encoder}; use the source "file" with a sha256, or "none".'
            )
        return self


class Network(nn.Module):
    """Encoder and head, on images in [0, 1].

    The normalisation stands in buffers that are not part of the state, so `state_dict` holds `encoder.*`, `head.*` and,
    where there is one, `projector.*`, `calibrator.*` and `contrast.*` only.

    Attributes:
        encoder: The part that sites share.
        projector: Two layers between encoder and head, or None.
        head: The part that knows the site's grades.
        calibrator: Temperatures an image, or None.
        contrast: Projector and predictor of contrastive training, beside the head, or None.
        space: Turns the classes of a head that all sites share into the site's own grades; None where they are equal.
        normalisation: The normalisation in use.
        outputs: What an objective may ask for.
        provenance: Where the encoder's start came from; None before weights were considered (meta).
    """

    outputs: ClassVar[frozenset[str]] = frozenset({"logits", "features"})
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
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.head = head
        self.calibrator = calibrator
        self.contrast = contrast
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

    def features(self, x: Tensor) -> Tensor:
        """Return what enters the head, `[B, F]`, of images `[B, 3, H, W]` in [0, 1]: pooled, projected if need be."""
        out: Tensor = self.encoder(self.normalised(x))
        return out if self.projector is None else self.projector(out)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[B, K]` of images `[B, 3, H, W]` in [0, 1]."""
        return self.logits(self.features(x))

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


def build_network(settings: NetworkSettings, num_classes: int, seed: int) -> Network:
    """Return a site's network at its start, on the CPU; torch's global generators are left as they were.

    Encoder, head, projector and contrastive head draw from seeds of their own, derived from `seed`. So the encoder's
    start is the same at sites with different numbers of grades, and the whole start is the same at sites with equal
    numbers.

    Args:
        settings: Encoder, weights, head and normalisation.
        num_classes: Grades K of this site.
        seed: Seed of the run, 0 or more.

    Raises:
        SettingsError: Fewer than two grades, a negative seed, or weights that cannot be loaded.
    """
    if seed < 0:
        raise SettingsError(f"The seed must be 0 or more, but {seed} was given; choose another.")
    seeds = (int(s.generate_state(1, np.uint64)[0]) for s in np.random.SeedSequence(seed).spawn(4))
    encoder_seed, head_seed, projector_seed, contrast_seed = seeds
    # Only the CPU generator is forked and seeded: torch.manual_seed would also reseed every accelerator.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(encoder_seed)
        encoder = ENCODERS[settings.encoder]()
        provenance = load_encoder_weights(settings.encoder, encoder, settings.weights)
        torch.default_generator.manual_seed(projector_seed)
        projector = _projector(encoder, settings)
        torch.default_generator.manual_seed(contrast_seed)
        contrast = _contrast(encoder, settings)
        torch.default_generator.manual_seed(head_seed)
        net = _join(encoder, projector, contrast, settings, num_classes, provenance["normalisation"])
    net.provenance = provenance
    return net


def build_on_meta(settings: NetworkSettings, num_classes: int = 2) -> Network:
    """Return the network without memory and without weights: its keys, shapes, dtypes and modules only.

    Filters and the server build it to map keys to kinds; they need neither the weights' file nor the package. So it
    does not know what normalisation an exported encoder asks for: `build_network` does.

    Args:
        settings: As for `build_network`.
        num_classes: Grades K; any value will do where the head does not travel.

    Raises:
        SettingsError: Fewer than two grades.
    """
    with torch.device("meta"), _NoInit():
        encoder = ENCODERS[settings.encoder]()
        auto = trained_with(settings.encoder, settings.weights.source)
        layers = _projector(encoder, settings), _contrast(encoder, settings)
        return _join(encoder, *layers, settings, num_classes, auto)


class _NoInit(TorchFunctionMode):
    """Leaves out torch.nn.init: on the meta device there is nothing to draw, and drawing imports torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _projector(encoder: Encoder, settings: NetworkSettings) -> nn.Module | None:
    """MOON's projection: as wide as the features, then down to its width."""
    if settings.projector is None:
        return None
    wide = encoder.features
    return nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, settings.projector))


def _contrast(encoder: Encoder, settings: NetworkSettings) -> ContrastHead | None:
    return None if settings.contrast is None else ContrastHead(encoder.features, settings.contrast)


def _join(
    encoder: Encoder,
    projector: nn.Module | None,
    contrast: ContrastHead | None,
    settings: NetworkSettings,
    num_classes: int,
    auto: Normalisation,
) -> Network:
    normalisation = auto if settings.normalise == "auto" else settings.normalise
    width = settings.projector or encoder.features
    calibrator = Calibrator(width) if settings.calibrator else None
    head = build_head(width, num_classes, settings.head)
    return Network(encoder, head, normalisation, projector, calibrator, contrast)
