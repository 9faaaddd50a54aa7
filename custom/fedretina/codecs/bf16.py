"""bfloat16: float32 without the lower half of its bits."""

from __future__ import annotations

import torch

from fedretina.codecs.codec import Codec, codec
from fedretina.settings.codec import Bf16Settings


@codec(Bf16Settings)
class Bf16(Codec):
    """Rounds to the nearest bfloat16: 8 bits of exponent and 8 of mantissa, one of them implied.

    The upper bytes of all numbers stand before the lower ones, since signs and exponents repeat and can be packed.
    """

    def size(self, numbers: int) -> int:
        """See `Codec.size`."""
        return 2 * numbers

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        """See `Codec.encode`."""
        pairs = numbers.to(torch.bfloat16).view(torch.uint8).reshape(-1, 2)
        return pairs.flip(1).T.reshape(-1)

    def decode(self, body: torch.Tensor, numbers: int) -> torch.Tensor:
        """See `Codec.decode`."""
        pairs = body.reshape(2, numbers).T.flip(1).contiguous()
        return pairs.reshape(-1).view(torch.bfloat16).to(torch.float32)
