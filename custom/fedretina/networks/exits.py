"""Early exits: small heads after chosen stages of an encoder, whose answers make an ensemble in one forward pass."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from fedretina.errors import SettingsError
from fedretina.networks.encoder import Encoder


class ExitSettings(BaseModel):
    """Early exits of an encoder (FedEE, section 4.2, Eq. 7).

    Attributes:
        after: Stages of the encoder that an exit follows, counted from 0. None takes those of the paper where it
            names some, else those of the encoder (`networks.encoders.EXITS`).
        width: Hidden units H that the exits are measured by; None is the width of the encoder's last stage: 1280, 512
            and 64 for the networks of the official code, as there.
        growth: How much wider a pair of stages makes an exit: h_i = floor(growth^((M - i) / 2) H) for exit i of M,
            counted from the input, so that early exits, which see simple features, are wider. The paper has 1.2.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    after: tuple[int, ...] | None = None
    width: int | None = Field(default=None, ge=1, le=8192)
    growth: float = Field(default=1.2, ge=1, le=4)

    @field_validator("after")
    @classmethod
    def _after_is_ascending(cls, after: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if after is not None and (not after or min(after) < 0 or sorted(set(after)) != list(after)):
            raise ValueError(f"exits.after is {list(after)}: name stages from 0, in ascending order, none twice.")
        return after

    def widths(self, exits: int, last: int) -> tuple[int, ...]:
        """Hidden units of each of M exits, from the input to the end."""
        base = self.width or last
        return tuple(math.floor(math.sqrt(self.growth) ** (exits - i) * base) for i in range(exits))  # h_i


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

    def answers(self, number: int, seen: Tensor) -> list[Tensor]:
        """Logits `[B, K]` of the exit after a stage, given the stage's map `[B, C, h, w]`; none where it has none."""
        if number not in self.after:
            return []
        return [self[self.after.index(number)](seen.mean(dim=(2, 3)))]
