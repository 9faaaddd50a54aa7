"""The interface between what travels and the numbers of bits that it travels in."""

from __future__ import annotations

from typing import Any

import torch

from fedretina.parts import Register
from fedretina.settings.codec import EncodingSettings


class Codec:
    """A choice on the codec axis: turns the numbers of one tensor into bytes of a fixed length, and back.

    It holds no state: what its rounding loses is kept by `Encoding` and added to the next round's numbers.

    Args:
        settings: Its own settings.
    """

    def __init__(self, settings: Any) -> None:
        pass

    def size(self, numbers: int) -> int:
        """Bytes that so many numbers take, before entropy coding; it follows from the count alone."""
        raise NotImplementedError

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        """Round numbers; the same numbers give the same bytes, so that a round that is repeated gives the same bits.

        Args:
            numbers: float32 [n], all finite.

        Returns:
            uint8 [size(n)].
        """
        raise NotImplementedError

    def decode(self, body: torch.Tensor, numbers: int) -> torch.Tensor:
        """The numbers that bytes stand for.

        Args:
            body: uint8 [size(numbers)], as another end sent it.
            numbers: How many there are.

        Returns:
            float32 [numbers]; finite and of a sane size or not, the caller looks.

        Raises:
            RefusedError: No `encode` gives such bytes; it says what is wrong, not where.
        """
        raise NotImplementedError


codec: Register[type[Codec]] = Register("fedretina.codecs")
"""Registers the class below it as the codec of some settings."""


def build_codec(settings: EncodingSettings) -> Codec:
    """Build the codec that the settings name.

    Raises:
        SettingsError: None is registered for them.
    """
    return codec.of(settings)(settings)
