"""The heads: the parts of a network that know the site's own grades, the last one and the early exits."""

from __future__ import annotations

from torch import Tensor, nn

from fedretina.errors import SettingsError
from fedretina.networks.encoder import Encoder
from fedretina.settings.network import ExitSettings, HeadSettings


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


class Exits(nn.ModuleList):
    """Early exits: small heads after chosen stages of an encoder, which make an ensemble in one forward pass.

    One per stage: global average, Linear, ReLU, Linear to the grades.

    Attributes:
        after: The stages that they follow.

    Args:
        encoder: The encoder that they read.
        after: Stages, ascending.
        num_classes: Grades K.
        settings: Widths.

    Raises:
        SettingsError: The encoder has no such stage.
    """

    def __init__(self, encoder: Encoder, after: tuple[int, ...], num_classes: int, settings: ExitSettings) -> None:
        if after[-1] >= len(encoder.widths):
            raise SettingsError(
                f"network.exits.after names stage {after[-1]}, but this encoder has {len(encoder.widths)} stages, "
                f"0 to {len(encoder.widths) - 1}: name some of these."
            )
        hidden = settings.widths(len(after), encoder.widths[-1])
        super().__init__(
            nn.Sequential(nn.Linear(encoder.widths[stage], width), nn.ReLU(), nn.Linear(width, num_classes))
            for stage, width in zip(after, hidden, strict=True)
        )
        self.after = after

    def answer(self, number: int, averaged: Tensor) -> Tensor:
        """Logits `[B, K]` of the exit after a stage that has one, given the average `[B, C]` of the stage's map."""
        found: Tensor = self[self.after.index(number)](averaged)
        return found
