"""The contrastive head: projector and predictor of pre-training without labels, a builder for each layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fedretina.parts import Register
from fedretina.settings.network import (
    ContrastSettings,
    MocoV2LayersSettings,
    MocoV3LayersSettings,
    SimclrLayersSettings,
)


class ContrastHead(nn.Module):
    """What stands behind the encoder in contrastive training; nothing of it answers in the end.

    Args:
        projector: From features `[B, F]` to embeddings `[B, D]`, not yet of length 1.
        predictor: From embeddings to embeddings, on the query's side alone; None where there is none.
        width: D.
    """

    def __init__(self, projector: nn.Module, predictor: nn.Module | None, width: int) -> None:
        super().__init__()
        self.projector = projector
        self.predictor = predictor
        self.width = width


contrast_head: Register[Callable[[int, Any], ContrastHead]] = Register(__name__)
"""The layouts, by the class of their settings: from the length F of the encoder's vector and them to the head."""


def build_contrast_head(features: int, settings: ContrastSettings) -> ContrastHead:
    """Build the head that the settings choose; its start is drawn from torch's generator, which `build_network` seeds.

    Args:
        features: Length F of the encoder's vector.
        settings: Layout and widths.
    """
    return contrast_head.of(settings)(features, settings)


@contrast_head(MocoV2LayersSettings)
@contrast_head(SimclrLayersSettings)
def two_layers(features: int, settings: ContrastSettings) -> ContrastHead:
    """MoCo v2 (Chen, Fan, Girshick, He 2020): linear, ReLU, linear. SimCLR (Chen et al., ICML 2020) has the same."""
    width, hidden = settings.width or 128, settings.hidden or features
    projector = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, width))
    return ContrastHead(projector, None, width)


@contrast_head(MocoV3LayersSettings)
def normalised_layers(features: int, settings: MocoV3LayersSettings) -> ContrastHead:
    """MoCo v3 (Chen, Xie, He, ICCV 2021), as published for ResNet-50.

    Both layers are without bias and with BatchNorm, the last without scale and shift; the predictor has the same form
    without the last BatchNorm. With BatchNorm a training batch needs two images at least.
    """
    width, hidden = settings.width or 256, settings.hidden or 4096
    last = nn.BatchNorm1d(width, affine=False)
    projector = nn.Sequential(*_normalised(features, hidden, width), last)
    return ContrastHead(projector, nn.Sequential(*_normalised(width, hidden, width)), width)


def _normalised(features: int, hidden: int, width: int) -> list[nn.Module]:
    first, last = nn.Linear(features, hidden, bias=False), nn.Linear(hidden, width, bias=False)
    return [first, nn.BatchNorm1d(hidden), nn.ReLU(), last]
