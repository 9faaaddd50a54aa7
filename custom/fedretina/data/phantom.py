"""Phantom hospitals: synthetic fundus images for every site that points to no data of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.phantom_drawing import SCALE, Field, Style, camera_style, draw
from fedretina.data.scheme import GradingScheme, preset
from fedretina.seeds import derive_seed, generator

# A mark drawn into the picture cannot be read at 64 pixels, so what marks a phantom as synthetic is
# `SiteData.synthetic`, which reports and model cards carry on.
PHANTOM_VERSION = 1


class PhantomHospital(NamedTuple):
    """A synthetic hospital.

    Attributes:
        scheme: Its grades.
        sizes: Images in train, val and test.
        style_seed: What its camera is drawn from.
        mix: Share of each grade; sums to 1.
    """

    scheme: GradingScheme
    sizes: tuple[int, int, int]
    style_seed: int
    mix: tuple[float, ...]

    def labels(self, split: int, seed: tuple[int | str, ...]) -> NDArray[np.int64]:
        """Labels of a split in a seeded order; each grade that fits has at least one image.

        Args:
            split: 0 train, 1 val, 2 test.
            seed: Of the order.
        """
        size = self.sizes[split]
        exact = np.array(self.mix) * size
        counts = np.floor(exact).astype(np.int64)
        if size >= len(self.mix):
            counts = np.maximum(counts, 1)
        while counts.sum() < size:
            counts[np.argmax(exact - counts)] += 1
        while counts.sum() > size:
            counts[np.argmax(counts - exact - 1e9 * (counts <= 1) * (size >= len(self.mix)))] -= 1
        return generator(*seed, "order").permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int64)


class _Preset(NamedTuple):
    scheme: str
    share: float  # of the average site's images
    mix: tuple[float, ...]  # as published


# Sizes are nearer to each other than the published sets', so that the small site is small and not empty.
_APTOS = _Preset("icdr5", 1.0, (0.49, 0.10, 0.27, 0.06, 0.08))
_MESSIDOR = _Preset("normal_3stages", 0.7, (0.455, 0.13, 0.205, 0.21))
_DDR = _Preset("icdr5_ungradable", 1.5, (0.46, 0.05, 0.33, 0.02, 0.06, 0.08))
_EYEPACS = _Preset("icdr5", 1.5, (0.735, 0.07, 0.15, 0.025, 0.02))
_IDRID = _Preset("icdr5", 0.3, (0.33, 0.05, 0.32, 0.18, 0.12))
_PRESETS = (_APTOS, _MESSIDOR, _DDR, _EYEPACS, _IDRID)


def phantom_hospital(site: str, images: int = 160, scheme: GradingScheme | None = None) -> PhantomHospital:
    """The phantom hospital of a site.

    site-1 to site-5 are modelled on the five sites of FedUAA (APTOS, Messidor, DDR, EyePACS, IDRiD): their
    number of grades, their mix of grades, and roughly who is small. Any other name gets one of the five by a
    hash, with a camera of its own.

    Args:
        site: Name of the site.
        images: Training images of an average site.
        scheme: Grades to use instead of the preset's; with another number of them, all are equally common.
    """
    number = derive_seed("phantom hospital", site)
    known = {f"site-{k + 1}": k for k in range(len(_PRESETS))}
    chosen = _PRESETS[known.get(site, number % len(_PRESETS))]
    grades = preset(chosen.scheme) if scheme is None else scheme
    same = grades.num_classes == len(chosen.mix)
    mix = chosen.mix if same else (1 / grades.num_classes,) * grades.num_classes
    train = max(2 * grades.num_classes, round(images * chosen.share))
    held = max(2 * grades.num_classes, round(train * 0.25))
    return PhantomHospital(grades, (train, held, round(held * 1.5)), number, mix)


def phantom_images(
    n: int,
    num_classes: int,
    image_size: int,
    seed: tuple[int | str, ...],
    labels: NDArray[np.int64] | None = None,
    style: Style | None = None,
    ungradable: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw phantoms whose lesions grow with the grade.

    The severity behind a label is drawn around it with a spread, so neighbouring grades overlap as graders do.
    Fewer or more grades than five are spread over the ICDR scale. Image i depends on the
    seed and i alone.

    Args:
        n: How many.
        num_classes: Grades of the hospital, 2 or more.
        image_size: Side S in pixels.
        seed: What the images are for.
        labels: int64 [n]; drawn uniformly by default.
        style: The camera; drawn from the seed by default.
        ungradable: Whether the last class is dark and blurred images that nobody can grade; by default it
            is where there are six classes.

    Returns:
        Images uint8 [n, 3, S, S], RGB, and labels int64 [n].
    """
    last_is_bad = num_classes == 6 if ungradable is None else ungradable
    graded = num_classes - 1 if last_is_bad else num_classes
    if labels is None:
        labels = generator(*seed, "labels").integers(0, num_classes, n)
    camera = camera_style(seed) if style is None else style
    images = np.empty((n, 3, image_size, image_size), np.uint8)
    field = Field(image_size * SCALE)
    for i in range(n):
        rng = generator(*seed, "image", i)
        bad = last_is_bad and int(labels[i]) == num_classes - 1
        grade = rng.uniform(0, 4) if bad else 4 * int(labels[i]) / max(1, graded - 1)
        severity = float(np.clip(rng.normal(grade, 0.3), 0, 4.5))
        images[i] = draw(field, camera, severity, bad, rng).transpose(2, 0, 1)
    return torch.from_numpy(images), torch.from_numpy(np.asarray(labels, dtype=np.int64).copy())
