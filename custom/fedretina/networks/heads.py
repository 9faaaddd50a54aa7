"""The head: the part of a network that knows the site's own grades."""

from __future__ import annotations

from torch import nn

from fedretina.errors import SettingsError
from fedretina.settings.network import HeadSettings


def build_head(features: int, num_classes: int, settings: HeadSettings) -> nn.Sequential:
    """Return a head from pooled features `[B, features]` to logits `[B, num_classes]`.

    The logits have no activation: softmax, evidence and TWEU are choices of the objective. The start is
    drawn from torch's generator; `build_network` seeds it. With BatchNorm a training batch needs two images
    at least.

    Args:
        features: Length F of the encoder's vector.
        num_classes: Grades K of this site.
        settings: Layout and width.

    Raises:
        SettingsError: Fewer than two grades.
    """
    if num_classes < 2:
        raise SettingsError(f"A head needs at least 2 grades, but {num_classes} was given; check the grading scheme.")
    if settings.layout == "linear":
        return nn.Sequential(nn.Linear(features, num_classes))
    return nn.Sequential(
        nn.Linear(features, settings.width),
        nn.BatchNorm1d(settings.width),
        nn.ReLU(inplace=True),
        nn.Linear(settings.width, num_classes),
    )
