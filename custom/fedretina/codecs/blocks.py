"""int8 and int4: whole numbers in blocks that share a scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedretina.codecs.codec import Codec, codec
from fedretina.errors import RefusedError
from fedretina.settings.codec import BlockCodecSettings, Int4Settings, Int8Settings

_SMALLEST = 2.0**-100  # a scale below it is none: its block is nothing but zeros


@codec(Int8Settings)
@codec(Int4Settings)
class Blocks(Codec):
    """x becomes q s, with q a whole number from -L to L, L = 2^(bits - 1) - 1, and s = max |x| / L over its block.

    q is the nearest to x / s. QSGD (Alistarh et al., NeurIPS 2017) rounds at random instead, so that the mean is right
    without a memory; here error feedback gives back what the nearest loses, and at random a message is half as far
    again from what is meant, for as many bytes. s is a bfloat16, rounded up, so that no q lies outside. The body holds
    the scales and then the numbers, q + L + 1 each; of 4 bits two in a byte.

    Args:
        settings: Its settings.
    """

    def __init__(self, settings: BlockCodecSettings) -> None:
        self._block = settings.block
        self._bits = settings.bits
        self._levels = 2 ** (settings.bits - 1) - 1

    def size(self, numbers: int) -> int:
        """See `Codec.size`."""
        return 2 * self._blocks(numbers) + self._packed(numbers)

    def encode(self, numbers: Tensor) -> Tensor:
        """See `Codec.encode`."""
        padded = torch.zeros(self._blocks(numbers.numel()) * self._block)
        padded[: numbers.numel()] = numbers
        rows = padded.reshape(-1, self._block)
        scales = _up(rows.abs().amax(dim=1) / self._levels)
        over = torch.where(scales > 0, 1 / scales, torch.zeros_like(scales))
        rounded = rows.mul(over.unsqueeze(1)).round_()
        values = rounded.add_(self._levels + 1).to(torch.uint8).reshape(-1)[: numbers.numel()]
        if self._bits == 4:
            even = torch.full((2 * self._packed(numbers.numel()),), self._levels + 1, dtype=torch.uint8)
            even[: numbers.numel()] = values
            values = even[::2] | (even[1::2] << 4)
        return torch.cat([scales.to(torch.bfloat16).view(torch.uint8), values])

    def decode(self, body: Tensor, numbers: int) -> Tensor:
        """See `Codec.decode`."""
        blocks = self._blocks(numbers)
        scales = body[: 2 * blocks].clone().view(torch.bfloat16).to(torch.float32)
        if not bool(torch.isfinite(scales).all()) or bool((scales < 0).any()):
            raise RefusedError("a scale is not a finite number of 0 or more")
        packed = body[2 * blocks :]
        if self._bits == 4:
            packed = torch.stack([packed & 15, packed >> 4], dim=1).reshape(-1)[:numbers]
        if bool((packed == 0).any()):  # encoding gives 1 to 2 L + 1
            raise RefusedError("a number is below the smallest that its bits can stand for")
        values = packed.to(torch.float32).sub_(self._levels + 1)
        return values.mul_(scales.repeat_interleave(self._block)[:numbers])

    def _blocks(self, numbers: int) -> int:
        return math.ceil(numbers / self._block)

    def _packed(self, numbers: int) -> int:
        return math.ceil(numbers * self._bits / 8)


def _up(scales: Tensor) -> Tensor:
    """The smallest bfloat16 that is no less, 0 for what is next to nothing; as float32."""
    nearest = scales.to(torch.bfloat16)
    above = torch.where(nearest.to(torch.float32) < scales, nearest.view(torch.int16) + 1, nearest.view(torch.int16))
    found = above.view(torch.bfloat16).to(torch.float32)
    return torch.where(found < _SMALLEST, torch.zeros_like(found), found)
