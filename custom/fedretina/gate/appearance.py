"""What an image looks like in some fifty numbers: light, colour, contrast, fine detail at four scales, and layout.

They know nothing of disease and need no network, so they tell strange and spoiled images whatever the model learned.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_SIDE = 64  # at most, of the copy that light, colour and contrast are taken from, pixels
_GRID = 5
_DISC, _INNER = 0.9, 0.8  # of the image's side: where a retina is, and where its rim is not
_SCALES, _LEAST_SIDE = 4, 8
_TOGETHER = 64
_GREY = (0.299, 0.587, 0.114)


class Appearance(NamedTuple):
    """What N images look like; each field but the first is a tensor [N].

    Attributes:
        numbers: All of it, float64 [N, D]; D is the same for images of one size.
        luminance: Mean, 0 to 255.
        spread: Standard deviation of the luminance.
        chroma: Mean distance of a pixel's most deviant channel from its grey.
        burnt: Share of pixels whose channels are all at least 245.
        dark: Share of pixels darker than a quarter of the image's own bright ones: what is covered, or beyond the rim.
        detail: Logarithm of the mean contrast of the finest detail.
        sharpness: The same less that of detail four times as coarse: it falls when an image is blurred, and does not
            when it is only dark.
        red: Mean of the channel.
        blue: Mean of the channel.
    """

    numbers: Tensor
    luminance: Tensor
    spread: Tensor
    chroma: Tensor
    burnt: Tensor
    dark: Tensor
    detail: Tensor
    sharpness: Tensor
    red: Tensor
    blue: Tensor


def appearance(images: Tensor) -> Appearance:
    """Measure images as a network gets them.

    Args:
        images: uint8 [N, 3, H, W], RGB, N at least 1.
    """
    parts = [measured(part) for part in torch.split(images, _TOGETHER)]
    return Appearance(*(torch.cat(column) for column in zip(*parts, strict=True)))


def measured(images: Tensor) -> Appearance:
    """The same of all at once, without a loop over them: an exported model does it in its graph."""
    full = images.float()
    height, width = (min(_SIDE, side) for side in full.shape[2:])  # a smaller image is not blown up
    small = full if full.shape[2:] == (height, width) else F.adaptive_avg_pool2d(full, (height, width))
    inside = small.flatten(2)[:, :, _disc(height, width, _DISC)]  # [B, 3, P]
    means, weights = inside.mean(2), torch.tensor(_GREY)
    light = torch.einsum("bcp,c->bp", inside, weights)
    luminance, spread = light.mean(1), _spread(light)
    chroma = (inside - inside.mean(1, keepdim=True)).abs().amax(1).mean(1)
    burnt = (inside.amin(1) >= 245).float().mean(1)
    clipped = (inside.amax(1) >= 250).float().mean(1).sqrt()
    levels = torch.quantile(light, torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]), dim=1).T
    dark = (light < 0.25 * levels[:, -1:]).float().mean(1)
    red, green, blue = (share * full[:, at] for at, share in enumerate(_GREY))
    scales = _details((red + green + blue).unsqueeze(1))
    grid = torch.einsum("bchw,c->bhw", F.adaptive_avg_pool2d(small, _GRID), weights).flatten(1)
    columns = [
        torch.stack([luminance.log1p(), burnt, clipped, chroma.log1p(), (spread + 0.5).log(), dark], 1),
        scales,
        (levels + 4).log(),
        ((grid + 4) / (luminance[:, None] + 4)).log(),
        (means + 4).log(),
        ((means + 4) / (means.mean(1, keepdim=True) + 4)).log(),
        _spread(inside).log1p(),
    ]
    sharpness = scales[:, 0] - scales[:, min(2, scales.shape[1] - 1)]
    named = (luminance, spread, chroma, burnt, dark, scales[:, 0], sharpness, means[:, 0], means[:, 2])
    return Appearance(torch.cat(columns, 1).double(), *(one.double() for one in named))


def _spread(values: Tensor) -> Tensor:
    return (values - values.mean(-1, keepdim=True)).square().mean(-1).sqrt()  # `std` takes four times as long


def _details(grey: Tensor) -> Tensor:
    """Log mean contrast within the inner disc at each scale [B, L], each half as fine as the one before."""
    found: list[Tensor] = []
    for _ in range(_SCALES):
        height, width = grey.shape[2:]
        smooth = F.avg_pool2d(grey, 3, stride=1, padding=1, count_include_pad=False)
        apart = (grey - smooth).abs().flatten(1)[:, _disc(height, width, _INNER)]
        found.append((apart.mean(1) + 0.02).log())
        grey = F.avg_pool2d(smooth, 2)
        if min(grey.shape[2:]) < _LEAST_SIDE:
            break
    return torch.stack(found, 1)


@cache
def _disc(height: int, width: int, share: float) -> Tensor:
    """Places of the pixels within the disc; places, for a mask has no fixed number of them and cannot be exported."""
    y = (torch.arange(height) - (height - 1) / 2)[:, None] / (height / 2)
    x = (torch.arange(width) - (width - 1) / 2)[None] / (width / 2)
    return (y**2 + x**2 < share**2).flatten().nonzero()[:, 0]
