"""What every codec must do, for the tests of whoever writes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedretina.codecs.codec import Codec, build_codec
from fedretina.settings.codec import EncodingSettings
from fedretina.testing.methods import check_row, refuses_what_is_no_number, require

_COUNTS = (1, 2, 255, 256, 257, 5000)
_ROUNDS = 60


def check_codec(settings: EncodingSettings, folder: Path) -> dict[str, Any]:
    """Hold a codec to what every one must do.

    Its bytes have the length that it says and follow from the numbers alone; zeros stay zeros; whatever finite
    numbers go in, finite ones come out; and what one message loses can be made up for in the next ones: the mean of
    many comes close to what was sent. Besides, it passes `check_row` under SCAFFOLD.

    Args:
        settings: The codec's.
        folder: An empty folder for the runs.

    Returns:
        The results of the run.

    Raises:
        AssertionError: It does not do what it must.
        SettingsError: No codec is registered for the settings.
    """
    refuses_what_is_no_number(settings)
    codec = build_codec(settings)
    for count in _COUNTS:
        _round_trip(codec, torch.randn(count, generator=torch.Generator().manual_seed(count)))
        for value in (0.0, 0.3, -1e6, 1e-38, 1e-45):
            _round_trip(codec, torch.full((count,), value))
    _makes_up(codec)
    return check_row({"row": "scaffold", "exchange": {"codec": settings.model_dump()}}, folder)


def _round_trip(codec: Codec, numbers: torch.Tensor) -> None:
    count = numbers.numel()
    body, again = (codec.encode(numbers) for _ in range(2))
    require(body.dtype == torch.uint8 and body.shape == (codec.size(count),), f"gives {body.dtype} {tuple(body.shape)}")
    require(torch.equal(body, again), "gives other bytes for the same numbers")
    found = codec.decode(body, count)
    require(found.dtype == torch.float32 and found.shape == (count,), f"gives back {found.dtype} {tuple(found.shape)}")
    require(bool(torch.isfinite(found).all()), "gives back a number that is not finite")
    require(bool(numbers.any()) or not bool(found.any()), "makes something else of zeros")
    require(torch.equal(found, codec.decode(body, count)), "gives other numbers for the same bytes")


def _makes_up(codec: Codec) -> None:
    """Send one and the same tensor again and again, with what was lost before."""
    sent = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    lost, total = torch.zeros_like(sent), torch.zeros_like(sent)
    for _ in range(_ROUNDS):
        given = sent + lost
        found = codec.decode(codec.encode(given), given.numel())
        lost, total = given - found, total + found
    away = float((total / _ROUNDS - sent).norm() / sent.norm())
    require(away < 0.05, f"loses {away:.0%} of what is sent {_ROUNDS} times over, so its errors pile up")
