"""The contrastive head: projector and predictor of pre-training without labels."""

from __future__ import annotations

from torch import nn

from fedretina.settings.network import ContrastLayout, ContrastSettings

_WIDTH: dict[ContrastLayout, int] = {"moco_v2": 128, "moco_v3": 256, "simclr": 128}


_V3_HIDDEN = 4096


class ContrastHead(nn.Module):
    """What stands behind the encoder in contrastive training; nothing of it answers in the end.

    MoCo v2 (Chen, Fan, Girshick, He 2020): linear, ReLU, linear. SimCLR (Chen et al., ICML 2020) has the same two
    layers. MoCo v3 (Chen, Xie, He, ICCV 2021), as published for ResNet-50: both layers without bias and with
    BatchNorm, the last without scale and shift; the predictor has the same form without the last BatchNorm. With
    BatchNorm a training batch needs two images at least. The start is drawn from torch's generator; `build_network`
    seeds it.

    Attributes:
        projector: From features `[B, F]` to embeddings `[B, D]`, not yet of length 1.
        predictor: From embeddings to embeddings, on the query's side alone; None but for "moco_v3".
        width: D.

    Args:
        features: Length F of the encoder's vector.
        settings: Layout and widths.
    """

    predictor: nn.Module | None

    def __init__(self, features: int, settings: ContrastSettings) -> None:
        super().__init__()
        self.width = width = settings.width or _WIDTH[settings.layout]
        if settings.layout == "moco_v3":
            hidden = settings.hidden or _V3_HIDDEN
            last = nn.BatchNorm1d(width, affine=False)
            self.projector = nn.Sequential(*_normalised(features, hidden, width), last)
            self.predictor = nn.Sequential(*_normalised(width, hidden, width))
        else:
            hidden = settings.hidden or features
            self.projector = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, width))
            self.predictor = None


def _normalised(features: int, hidden: int, width: int) -> list[nn.Module]:
    first, last = nn.Linear(features, hidden, bias=False), nn.Linear(hidden, width, bias=False)
    return [first, nn.BatchNorm1d(hidden), nn.ReLU(), last]
