"""Random transforms on the fly, and two random views; what happens to an image depends on the seed and its number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from fedretina.errors import SettingsError
from fedretina.seeds import brought, derive_seed
from fedretina.settings.images import AugmentSettings, TwoViewSettings

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def augment(
    images: torch.Tensor, samples: NDArray[np.int64], settings: AugmentSettings, seed: tuple[int | str, ...]
) -> torch.Tensor:
    """Flip, rotate, turn, colour and roll a batch.

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
    turned, quarters = settings.rotate_degrees > 0, settings.quarter_turns
    square = images.ndim == 4 and images.shape[2] == images.shape[3]
    if images.dtype != torch.uint8 or images.ndim != 4 or ((turned or quarters) and not square):
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
        mirror = _there(flipped < 0, images).view(-1, 1, 1, 1)
        pixels = torch.where(mirror, pixels.flip(3), pixels)
    if quarters:
        pixels = oriented(pixels, _quarters(samples, seed))
    if settings.brightness > 0 or settings.contrast > 0:
        light = 1 + settings.brightness * (2 * draws[:, 2] - 1)
        spread = 1 + settings.contrast * (2 * draws[:, 3] - 1)
        # The mean is a sum of integers, so that it has the same bits however torch splits the batch.
        mean = images.sum(dim=(1, 2, 3), dtype=torch.int64).double() / max(1, math.prod(images.shape[1:]) * 255)
        pixels = pixels * _column(light * spread, pixels) + _column(light * (1 - spread), pixels, mean)
        pixels = pixels.clamp_(0, 1)
    return pixels


ORIENTATIONS = 8
"""Ways in which a square picture can lie: four turns, and the same of its mirror image."""


def orientations(settings: AugmentSettings) -> tuple[int, ...]:
    """The orientations that flips and quarter turns give, ascending; 0, the picture as it is, is one of them."""
    found = {0}
    if settings.flip_vertical:
        found |= {_flipped_vertically(one) for one in found}
    if settings.flip:
        found |= {_mirrored(one) for one in found}
    if settings.quarter_turns:
        found = {4 * (one // 4) + (one + turns) % 4 for one in found for turns in range(4)}
    return tuple(sorted(found))


def drawn_orientations(
    samples: NDArray[np.int64], settings: AugmentSettings, seed: tuple[int | str, ...]
) -> NDArray[np.int64]:
    """The orientation that `augment` gives each image of a batch, where it only flips and turns by quarters.

    Args:
        samples: As for `augment`.
        settings: How much; none of them `endless`.
        seed: As for `augment`.

    Returns:
        int64 [B], below `ORIENTATIONS`.
    """
    found = np.zeros(len(samples), np.int64)
    if settings.flip_vertical:
        upside = uniforms(samples, 3, (*seed, "moved"))[:, 0] < 0.5
        found = np.where(upside, _flipped_vertically(found), found)
    if settings.flip:
        found = np.where(uniforms(samples, 4, seed)[:, 0] < 0.5, _mirrored(found), found)
    if settings.quarter_turns:
        found = 4 * (found // 4) + (found + _quarters(samples, seed)) % 4
    return found


def oriented(images: torch.Tensor, orientation: NDArray[np.int64]) -> torch.Tensor:
    """Lay each image of a batch [B, C, S, S] as its orientation says; no pixel changes its value.

    Orientation o below 4 is o quarter turns anticlockwise, 4 + o the same after mirroring left and right. Images that
    are not square can be mirrored and turned by half.
    """
    found = images.clone()
    for one in np.unique(orientation[orientation > 0]):
        rows = _there(np.flatnonzero(orientation == one), images)
        part = images[rows]
        found[rows] = torch.rot90(part.flip(3) if one >= 4 else part, int(one) % 4, (2, 3))
    return found


def _quarters(samples: NDArray[np.int64], seed: tuple[int | str, ...]) -> NDArray[np.int64]:
    return np.asarray(uniforms(samples, 1, (*seed, "quarters"))[:, 0] * 4, dtype=np.int64)


def _mirrored(orientation: Any) -> Any:
    """The orientation after mirroring left and right: turns before it count backwards."""
    return 4 * (orientation < 4) + (4 - orientation % 4) % 4


def _flipped_vertically(orientation: Any) -> Any:
    """The orientation after mirroring up and down, which is mirroring left and right and half a turn."""
    mirrored = _mirrored(orientation)
    return 4 * (mirrored // 4) + (mirrored + 2) % 4


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
        mirror = _there(upside < 0.5, pixels).view(-1, 1, 1, 1)
        pixels = torch.where(mirror, pixels.flip(2), pixels)
    if settings.roll > 0:
        length = pixels.shape[3]
        steps = np.round(settings.roll * length * (2 * later - 1)).astype(np.int64)
        source = (np.arange(length)[None] - steps[:, None]) % length
        at = _there(source, pixels).view(-1, 1, 1, length)
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


def _there(values: NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    """What was drawn, where the images are."""
    return brought(torch.from_numpy(values), like.device)


def _column(values: NDArray[np.float64], like: torch.Tensor, by: torch.Tensor | None = None) -> torch.Tensor:
    """A number for each image, times what was found there (float64 [B]), as float32 [B, 1, 1, 1]."""
    there = _there(values.astype(np.float32), like) if by is None else (_there(values, like) * by).float()
    return there.view(-1, 1, 1, 1)


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


def _prepared(images: torch.Tensor, samples: NDArray[np.int64], grey: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch as float32 [B, C, S, S] in [0, 1], with one channel where it is grey, and each image's mean.

    Both are where the images are; the mean is float64 [B].
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3]:
        raise SettingsError(
            f"views are drawn of uint8 images [B, 3, S, S], got {images.dtype} {tuple(images.shape)}: pass cached ones."
        )
    if len(samples) != len(images):
        raise SettingsError(f"views got {len(samples)} sample numbers for {len(images)} images: pass one each.")
    part = images[:, :1] if grey else images
    # The mean is a sum of integers, so that it has the same bits however torch splits the batch.
    means = part.sum(dim=(1, 2, 3), dtype=torch.int64).double() / (255 * math.prod(part.shape[1:]))
    return part.to(torch.float32, memory_format=torch.contiguous_format).div_(255), means


def _view(
    pixels: torch.Tensor,
    means: torch.Tensor,
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
    view.mul_(_column(light * spread, view)).add_(_column(light * (1 - spread), view, means)).clamp_(0, 1)

    chosen = np.flatnonzero(blurred < settings.blur_probability)
    if len(chosen):
        least, most = (limit * pixels.shape[-1] / _SIDE for limit in settings.blur_sigma)
        where = _there(chosen, view)
        view[where] = gaussian_blur(view[where], least + (most - least) * sigma[chosen], most)
    chosen = np.flatnonzero(speckled < settings.speckle_probability)
    if len(chosen) and settings.speckle > 0:
        where = _there(chosen, view)
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


def affine_sample(pixels: torch.Tensor, matrices: NDArray[np.float64]) -> torch.Tensor:
    """Sample each image through an affine map of its own, bilinear and with black around.

    Args:
        pixels: float32 [B, C, S, S] in [0, 1], on any device.
        matrices: float64 [B, 2, 3], from where a pixel of the result stands to where it is read, (x, y, 1) to
            (x, y); the image's edges are -1 and 1.

    Returns:
        float32 [B, C, S, S] in [0, 1].
    """
    size = pixels.shape[-1]
    axis = (torch.arange(size, dtype=torch.float32, device=pixels.device) * 2 + 1) / size - 1
    x, y = axis.view(1, 1, size), axis.view(1, size, 1)
    entries = _there(matrices.astype(np.float32), pixels).view(-1, 2, 3, 1, 1)
    # affine_grid is a batched matrix product whose last bit depends on the batch; these products do not.
    rows = [(row[:, 0] * x + row[:, 2]) + row[:, 1] * y for row in entries.unbind(1)]
    grid = torch.stack(rows, dim=-1)
    return F.grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=False).clamp_(0, 1)


_GOLDEN_32 = 0x9E3779B9
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - 2**32  # as signed 32-bit numbers
_BYTES = 0x00FF00FF
_MEAN, _DEVIATION = 510.0, math.sqrt(4 * (256**2 - 1) / 12)  # of a sum of four bytes


def gaussian_blur(pixels: torch.Tensor, sigma: NDArray[np.float64], most: float) -> torch.Tensor:
    """Blur each image with a Gaussian of its own, cut at three times the widest; edges are repeated.

    It is written as shifts and products, for the bits of a convolution depend on the batch that it is given.

    Args:
        pixels: float32 [B, C, S, S], on any device.
        sigma: float64 [B], standard deviations in pixels, above 0.
        most: The widest that may come, pixels; it decides how far the taps reach, whatever this batch holds.

    Returns:
        float32 [B, C, S, S].
    """
    reach, size = max(1, math.ceil(3 * most)), pixels.shape[-1]
    taps = np.exp(-0.5 * (np.arange(reach + 1) / sigma[:, None]) ** 2)
    taps /= taps[:, :1] + 2 * taps[:, 1:].sum(1, keepdims=True)
    weights = _there(taps.astype(np.float32), pixels).view(len(taps), reach + 1, 1, 1, 1).unbind(1)
    for axis, pad in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
        wide = F.pad(pixels, pad, mode="replicate")
        pixels = wide.narrow(axis, reach, size) * weights[0]
        for k in range(1, reach + 1):
            pixels += (wide.narrow(axis, reach - k, size) + wide.narrow(axis, reach + k, size)).mul_(weights[k])
    return pixels


def speckle(pixels: torch.Tensor, amount: NDArray[np.float64], keys: NDArray[np.float64]) -> torch.Tensor:
    """Multiply each pixel by 1 plus noise, the same for all channels, as the grain of an OCT scan.

    The noise of a pixel is the mix of its image's key and its place (a 32-bit integer hash: two multiplications and
    three shifts), the sum of whose four bytes is close to normal and never beyond 3.5 deviations. Integers
    give the same bits on every device.

    Args:
        pixels: float32 [B, C, S, S] in [0, 1], on any device.
        amount: float64 [B], standard deviation of the noise.
        keys: float64 [B], a draw in [0, 1) for each image.

    Returns:
        float32 [B, C, S, S] in [0, 1].
    """
    size = pixels.shape[-1]
    places = np.arange(size * size, dtype=np.uint32).reshape(1, 1, size, size) * np.uint32(_GOLDEN_32)
    roots = (keys * 2.0**32).astype(np.uint32).reshape(-1, 1, 1, 1)
    x = _there(places.view(np.int32), pixels) + _there(roots.view(np.int32), pixels)
    x ^= (x >> 16) & 0xFFFF  # the shift of a signed number draws in its sign
    x *= _FIRST
    x ^= (x >> 15) & 0x1FFFF
    x *= _SECOND
    x ^= (x >> 16) & 0xFFFF
    pairs = (x & _BYTES) + ((x >> 8) & _BYTES)
    total = ((pairs & 0xFFFF) + (pairs >> 16)).float()
    scale = amount / _DEVIATION
    factor = total.mul_(_column(scale, pixels)).add_(_column(1 - _MEAN * scale, pixels))
    return (pixels * factor).clamp_(0, 1)
