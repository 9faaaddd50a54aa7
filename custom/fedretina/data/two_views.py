"""Two random views of each image, for contrastive training; a view depends on the seed and its number alone."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.augment import uniforms
from fedretina.data.grain import gaussian_blur, speckle
from fedretina.data.warps import affine_sample
from fedretina.errors import SettingsError
from fedretina.settings.images import TwoViewSettings

_SIDE = 224.0  # the image side that blur is stated for


_DRAWS = 14


def two_views(
    images: torch.Tensor,
    samples: NDArray[np.int64],
    settings: TwoViewSettings,
    seed: tuple[int | str, ...],
    grey: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw two views of each image of a batch.

    A view is a crop, turned, mirrored and stretched to the whole side in one sampling, then brightness and contrast,
    blur and speckle. What a sample gives is the same in any batch, at any place in it. MONAI's random transforms are
    not used: image by image they took about 25 times (64 pixels) and 4 times (224 pixels) the CPU time, run in turn
    with these on one thread (RandAffine, RandFlip, RandAdjustContrast, RandGaussianSmooth; without speckle).

    Args:
        images: uint8 [B, 3, S, S], on any device.
        samples: int64 [B], number of each image in its split, 0 or more.
        settings: How much.
        seed: What the draws are for, such as (seed, site, phase, round, epoch).
        grey: The three channels are equal, as those of OCT scans are: the first is worked on and stands for all, so
            the channels of the views share their memory and must not be written to.

    Returns:
        Both views, float32 [B, 3, S, S] in [0, 1], on the same device.

    Raises:
        SettingsError: The batch is no uint8 [B, 3, S, S], or B numbers do not come with it.
    """
    pixels, means = _prepared(images, samples, grey)
    first, second = (_view(pixels, means, samples, settings, (*seed, "view", number)) for number in (0, 1))
    return first.expand(images.shape), second.expand(images.shape)


def one_view(
    images: torch.Tensor,
    samples: NDArray[np.int64],
    settings: TwoViewSettings,
    seed: tuple[int | str, ...],
    view: int,
    grey: bool = False,
) -> torch.Tensor:
    """Draw one view of each image, view 0 or 1 of `two_views`, or a further one; see there."""
    pixels, means = _prepared(images, samples, grey)
    return _view(pixels, means, samples, settings, (*seed, "view", view)).expand(images.shape)


def _prepared(images: torch.Tensor, samples: NDArray[np.int64], grey: bool) -> tuple[torch.Tensor, NDArray[np.float64]]:
    """The batch as float32 [B, C, S, S] in [0, 1], with one channel where it is grey, and each image's mean."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3]:
        raise SettingsError(
            f"views are drawn of uint8 images [B, 3, S, S], got {images.dtype} {tuple(images.shape)}: pass cached ones."
        )
    if len(samples) != len(images):
        raise SettingsError(f"views got {len(samples)} sample numbers for {len(images)} images: pass one each.")
    part = images[:, :1] if grey else images
    # The mean is a sum of integers, so that it has the same bits however torch splits the batch.
    total = part.sum(dim=(1, 2, 3), dtype=torch.int64).cpu().numpy().astype(np.float64)
    means = total / (255.0 * part.shape[1] * part.shape[2] * part.shape[3])
    return part.to(torch.float32, memory_format=torch.contiguous_format).div_(255), means


def _view(
    pixels: torch.Tensor,
    means: NDArray[np.float64],
    samples: NDArray[np.int64],
    settings: TwoViewSettings,
    seed: tuple[int | str, ...],
) -> torch.Tensor:
    draws = uniforms(samples, _DRAWS, seed).T
    coloured, light, spread, blurred, sigma, speckled, amount, key = draws[6:]
    view = affine_sample(pixels, _matrices(settings, draws[:6]))

    often = coloured < settings.colour_probability
    light = np.where(often, 1 + settings.brightness * (2 * light - 1), 1.0)
    spread = np.where(often, 1 + settings.contrast * (2 * spread - 1), 1.0)
    view.mul_(_column(light * spread, view)).add_(_column(light * (1 - spread) * means, view)).clamp_(0, 1)

    chosen = np.flatnonzero(blurred < settings.blur_probability)
    if len(chosen):
        least, most = (limit * pixels.shape[-1] / _SIDE for limit in settings.blur_sigma)
        where = torch.from_numpy(chosen).to(view.device)
        view[where] = gaussian_blur(view[where], least + (most - least) * sigma[chosen], most)
    chosen = np.flatnonzero(speckled < settings.speckle_probability)
    if len(chosen) and settings.speckle > 0:
        where = torch.from_numpy(chosen).to(view.device)
        view[where] = speckle(view[where], settings.speckle * amount[chosen], key[chosen])
    return view.clamp_(0, 1)


def _matrices(settings: TwoViewSettings, draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Crop, rotation about the crop's middle and mirror, as maps for `affine_sample`, float64 [B, 2, 3].

    A crop that would be wider or higher than the image is cut to it, where torchvision draws again.
    """
    area, ratio, across, down, flip, angle = draws
    least, most = settings.crop_scale
    low, high = (math.log(limit) for limit in settings.crop_ratio)
    area, ratio = least + (most - least) * area, np.exp(low + (high - low) * ratio)
    width, height = np.minimum(np.sqrt(area * ratio), 1), np.minimum(np.sqrt(area / ratio), 1)
    side = np.where(flip < 0.5, -1.0, 1.0) if settings.flip else 1.0
    angle = np.deg2rad(settings.rotate_degrees) * (2 * angle - 1)
    cos, sin = np.cos(angle), np.sin(angle)
    x = (cos * width * side, -sin * height, (1 - width) * (2 * across - 1))
    y = (sin * width * side, cos * height, (1 - height) * (2 * down - 1))
    return np.stack([np.stack(x, axis=-1), np.stack(y, axis=-1)], axis=1)


def _column(values: NDArray[np.float64], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(like.device).view(-1, 1, 1, 1)
