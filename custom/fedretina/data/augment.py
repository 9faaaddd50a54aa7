"""Random transforms on the fly; what happens to an image depends on the seed and its number alone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.warps import affine_sample
from fedretina.errors import SettingsError
from fedretina.seeds import derive_seed
from fedretina.settings.images import AugmentSettings

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def augment(
    images: torch.Tensor, samples: NDArray[np.int64], settings: AugmentSettings, seed: tuple[int | str, ...]
) -> torch.Tensor:
    """Flip, rotate, colour and roll a batch.

    The result of a sample is the same in any batch, at any place in it. The official code draws from global
    generators (torchvision, nearest pixel); here the draws are counted by sample and the rotation is bilinear,
    with black around. MONAI's random transforms are not used: they
    work image by image and call by call, and took 4 to 60 times as long (224 and 64 pixels, CPU).

    Args:
        images: uint8 [B, 3, H, W], on any device; square where they are rotated.
        samples: int64 [B], number of each image in its split, 0 or more.
        settings: How much.
        seed: What the draws are for, such as (seed, site, phase, round, epoch).

    Returns:
        float32 [B, 3, H, W] in [0, 1], on the same device.

    Raises:
        SettingsError: The batch is no uint8 [B, 3, H, W], or not square and to be rotated, or B numbers do not come
            with it.
    """
    turned = settings.rotate_degrees > 0
    if images.dtype != torch.uint8 or images.ndim != 4 or (turned and images.shape[2] != images.shape[3]):
        raise SettingsError(
            f"augment takes uint8 images [B, 3, S, S], got {images.dtype} {tuple(images.shape)}: pass cached images."
        )
    if len(samples) != len(images):
        raise SettingsError(f"augment got {len(samples)} sample numbers for {len(images)} images: pass one each.")
    draws = uniforms(samples, 4, seed)
    flipped = np.where(draws[:, 0] < 0.5, -1.0, 1.0) if settings.flip else np.ones(len(draws))
    angle = np.deg2rad(settings.rotate_degrees) * (2 * draws[:, 1] - 1)
    pixels = images.to(torch.float32).div_(255)
    if settings.flip_vertical or settings.roll > 0 or settings.gain > 0:
        pixels = _moved(pixels, uniforms(samples, 3, (*seed, "moved")).T, settings)
    if turned:
        pixels = _warp(pixels, angle, flipped)
    elif settings.flip:
        mirror = torch.from_numpy(flipped < 0).to(images.device).view(-1, 1, 1, 1)
        pixels = torch.where(mirror, pixels.flip(3), pixels)
    if settings.brightness > 0 or settings.contrast > 0:
        light = 1 + settings.brightness * (2 * draws[:, 2] - 1)
        spread = 1 + settings.contrast * (2 * draws[:, 3] - 1)
        # The mean is a sum of integers, so that it has the same bits however torch splits the batch.
        total = images.sum(dim=(1, 2, 3), dtype=torch.int64).cpu().numpy()
        mean = total / max(1, images[0].numel() * 255) if len(images) else total.astype(np.float64)
        pixels = pixels * _column(light * spread, pixels) + _column(light * (1 - spread) * mean, pixels)
        pixels = pixels.clamp_(0, 1)
    return pixels


def uniforms(samples: NDArray[np.int64], count: int, seed: tuple[int | str, ...]) -> NDArray[np.float64]:
    """Uniform draws in [0, 1) that are counted by sample, not by call.

    SplitMix64 (Steele, Lea, Flood 2014) read as a counter-based generator: draw j of sample i is the mix of
    key + (i count + j + 1) times the golden ratio. Only the batch's own draws are computed.

    Args:
        samples: int64 [B], 0 or more.
        count: Draws a sample.
        seed: Hashed to the 63-bit key.

    Returns:
        float64 [B, count].
    """
    key = np.uint64(derive_seed(*seed))
    numbers = np.asarray(samples, dtype=np.int64).astype(np.uint64)[:, None]
    draw = np.arange(1, count + 1, dtype=np.uint64)
    z: NDArray[np.uint64] = np.asarray((numbers * np.uint64(count) + draw) * _GOLDEN + key, dtype=np.uint64)
    z = np.asarray((z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9), dtype=np.uint64)
    z = np.asarray((z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB), dtype=np.uint64)
    z = np.asarray((z ^ (z >> np.uint64(31))) >> np.uint64(11), dtype=np.uint64)
    return z.astype(np.float64) * 2.0**-53


def _moved(pixels: torch.Tensor, draws: NDArray[np.float64], settings: AugmentSettings) -> torch.Tensor:
    """Mirror up and down, roll time and scale around the middle; draws of their own leave those of the others alone."""
    upside, later, louder = draws
    if settings.flip_vertical:
        mirror = torch.from_numpy(upside < 0.5).to(pixels.device).view(-1, 1, 1, 1)
        pixels = torch.where(mirror, pixels.flip(2), pixels)
    if settings.roll > 0:
        length = pixels.shape[3]
        steps = np.round(settings.roll * length * (2 * later - 1)).astype(np.int64)
        source = (np.arange(length)[None] - steps[:, None]) % length
        at = torch.from_numpy(source).to(pixels.device).view(-1, 1, 1, length)
        pixels = pixels.gather(3, at.expand(pixels.shape))
    if settings.gain > 0:
        factor = _column(1 + settings.gain * (2 * louder - 1), pixels)
        pixels = ((pixels - 0.5) * factor + 0.5).clamp_(0, 1)
    return pixels


def _warp(pixels: torch.Tensor, angle: NDArray[np.float64], flipped: NDArray[np.float64]) -> torch.Tensor:
    """Rotate and mirror in one sampling; float32 [B, 3, S, S]."""
    cos, sin, none = np.cos(angle), np.sin(angle), np.zeros_like(angle)
    x, y = np.stack([cos * flipped, -sin * flipped, none], axis=-1), np.stack([sin, cos, none], axis=-1)
    return affine_sample(pixels, np.stack([x, y], axis=1))


def _column(values: NDArray[np.float64], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(like.device).view(-1, 1, 1, 1)
