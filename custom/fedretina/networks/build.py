"""How a network is built from its settings: at its start from a seed, or on the meta device for its keys alone."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fedretina.errors import SettingsError
from fedretina.networks.contrast import ContrastHead, build_contrast_head
from fedretina.networks.dropout import PassDropout
from fedretina.networks.encoder import Encoder, build_encoder
from fedretina.networks.heads import Exits, build_head
from fedretina.networks.network import Calibrator, Network
from fedretina.networks.weights import load_encoder_weights, trained_with
from fedretina.settings.encoder import Normalisation
from fedretina.settings.network import NetworkSettings


def build_network(settings: NetworkSettings, num_classes: int, seed: int) -> Network:
    """Return a site's network at its start, on the CPU; torch's global generators are left as they were.

    Encoder, head, projector, contrastive head and early exits draw from seeds of their own, derived from `seed`. So
    the encoder's start is the same at sites with different numbers of grades, and the whole start is the same at sites
    with equal numbers.

    Args:
        settings: Encoder, weights, head and normalisation.
        num_classes: Grades K of this site.
        seed: Seed of the run, 0 or more.

    Raises:
        SettingsError: Fewer than two grades, a negative seed, or weights that cannot be loaded.
    """
    if seed < 0:
        raise SettingsError(f"The seed must be 0 or more, but {seed} was given; choose another.")
    seeds = (int(s.generate_state(1, np.uint64)[0]) for s in np.random.SeedSequence(seed).spawn(5))
    encoder_seed, head_seed, projector_seed, contrast_seed, exits_seed = seeds
    # Only the CPU generator is forked and seeded: torch.manual_seed would also reseed every accelerator.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(encoder_seed)
        # What a file is going to fill need not be drawn.
        with nullcontext() if settings.weights.source == "none" else _NoInit():
            encoder = build_encoder(settings.encoder)
        provenance = load_encoder_weights(settings.encoder, encoder, settings.weights)
        torch.default_generator.manual_seed(projector_seed)
        projector = _projector(encoder, settings)
        torch.default_generator.manual_seed(contrast_seed)
        contrast = _contrast(encoder, settings)
        torch.default_generator.manual_seed(exits_seed)
        exits = _exits(encoder, settings, num_classes)
        torch.default_generator.manual_seed(head_seed)
        beside = _Beside(projector, contrast, exits)
        net = _join(encoder, beside, settings, num_classes, provenance["normalisation"])
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
        encoder = build_encoder(settings.encoder)
        auto = trained_with(settings.encoder, settings.weights.source)
        exits = _exits(encoder, settings, num_classes)
        beside = _Beside(_projector(encoder, settings), _contrast(encoder, settings), exits)
        return _join(encoder, beside, settings, num_classes, auto)


class _Beside(NamedTuple):
    """What a network may have beside encoder and head."""

    projector: nn.Module | None
    contrast: ContrastHead | None
    exits: Exits | None


class _NoInit(TorchFunctionMode):
    """Leaves out torch.nn.init, where what it drew would not be used.

    On the meta device there is nothing to draw, and drawing imports torch's compiler.
    """

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
    return None if settings.contrast is None else build_contrast_head(encoder.features, settings.contrast)


def _exits(encoder: Encoder, settings: NetworkSettings, num_classes: int) -> Exits | None:
    if settings.exits is None:
        return None
    return Exits(encoder, settings.exits.after or settings.traits.exits, num_classes, settings.exits)


def _dropouts(encoder: Encoder, settings: NetworkSettings) -> dict[int, PassDropout]:
    if settings.dropout is None:
        return {}
    after, rate = settings.dropout.after or settings.traits.exits, settings.dropout.rate
    if not set(after) <= set(range(len(encoder.widths))):
        raise SettingsError(
            f"network.dropout.after is {list(after)}, but this encoder has stages 0 to {len(encoder.widths) - 1}: "
            "name some of these."
        )
    return {stage: PassDropout(rate, stage) for stage in after}


def _join(
    encoder: Encoder,
    beside: _Beside,
    settings: NetworkSettings,
    num_classes: int,
    auto: Normalisation,
) -> Network:
    normalisation = auto if settings.normalise == "auto" else settings.normalise
    width = settings.projector or encoder.features
    calibrator = Calibrator(width) if settings.calibrator else None
    head = build_head(width, num_classes, settings.head)
    dropouts = _dropouts(encoder, settings)
    frozen = settings.frozen if isinstance(settings.frozen, int) else 0
    if frozen == len(encoder.stages):
        raise SettingsError(
            f"network.frozen is {frozen}, and this encoder has no more stages: write 'all' where none is to train."
        )
    frozen = len(encoder.stages) if settings.frozen == "all" else frozen
    return Network(
        encoder,
        head,
        normalisation,
        beside.projector,
        calibrator,
        beside.contrast,
        beside.exits,
        dropouts,
        frozen,
        settings.frozen_statistics,
    )
