"""Dermoscopic pictures: their deterministic transforms, steps over uint8 [H, W, 3], and what stands with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedretina.data.modalities import (
    ChannelsFirst,
    DataModality,
    Look,
    Pixels,
    Step,
    modality,
    picture_pipeline,
    resized,
)
from fedretina.data.phantoms.skin import PHANTOMS
from fedretina.settings.images import DermoscopySettings


class ShadesOfGrey:
    """Divide out the colour of the light, estimated by a Minkowski mean of each channel.

    Source: Finlayson and Trezzi, CIC 2004, with the power 6 that they find best; FLamby's preparation uses the same.
    """

    power = 6  # of the mean; 1 is the grey world, large ones the brightest pixel

    def __call__(self, image: Pixels) -> Pixels:
        """Return the picture under white light of the same strength, uint8 [H, W, 3]; a black one stays as it is."""
        # A table of 256 powers in place of a power a pixel.
        powers = (np.arange(256) / 255.0) ** self.power
        light = np.array([np.mean(powers[image[..., channel]]) ** (1 / self.power) for channel in range(3)])
        strength = float(np.sqrt(np.mean(light**2)))
        if float(np.min(light)) < 1 / 255:
            return image
        levels = np.arange(256)[:, None] * (strength / light)[None]
        table = np.clip(np.round(levels), 0, 255).astype(np.uint8)
        return np.stack([table[image[..., channel], channel] for channel in range(3)], axis=-1)


class ShorterSideTo:
    """Resize so that the shorter side has a length, keeping the aspect: area averages to shrink, bilinear to grow."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Pixels) -> Pixels:
        """Return uint8 [h, w, 3], the shorter of h and w being the size."""
        height, width = image.shape[:2]
        factor = self.size / min(height, width)
        if factor == 1:
            return image
        shape = max(self.size, round(height * factor)), max(self.size, round(width * factor))
        return resized(image, *shape, factor < 1)


class CentreSquare:
    """Cut the largest square out of the middle, where the lesion lies."""

    def __call__(self, image: Pixels) -> Pixels:
        """Return uint8 [T, T, 3], T the shorter side of [H, W, 3]."""
        height, width = image.shape[:2]
        size = min(height, width)
        top, left = (height - size) // 2, (width - size) // 2
        return image[top : top + size, left : left + size]


@modality(DermoscopySettings)
class Dermoscopy(DataModality):
    """Pictures of skin through a dermatoscope."""

    phantoms = PHANTOMS
    look = Look(longest=2.0, alike=0.96)

    @staticmethod
    def pipeline(settings: DermoscopySettings) -> Callable[[str | Path], Pixels]:
        """Load, resize, even out the light, crop: path to uint8 [3, S, S], RGB, 0 to 255.

        FLamby makes the shorter side 224 and cuts 200 pixels of it, at random places in training and from the middle
        in testing, so its networks see nine tenths of the shorter side. Ours see all of it; moving the picture about is
        left to the random transforms.

        Raises:
            DataError: When called on a file that cannot be read.
        """
        steps: list[Step] = [ShorterSideTo(settings.image_size)]
        if settings.constancy:
            steps.append(ShadesOfGrey())
        steps += [CentreSquare(), ChannelsFirst()]
        return picture_pipeline(steps)
