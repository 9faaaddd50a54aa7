"""Early exits: small heads after chosen stages of an encoder, whose answers make an ensemble in one forward pass."""

from __future__ import annotations

from torch import Tensor, nn

from fedretina.errors import SettingsError
from fedretina.networks.encoder import Encoder
from fedretina.settings.network import ExitSettings


class Exits(nn.ModuleList):
    """One exit a chosen stage: global average, Linear, ReLU, Linear to the grades.

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
