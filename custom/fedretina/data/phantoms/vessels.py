"""The retinal vessels of a phantom: arteries and veins that leave the disc, arch over the macula and branch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.canvas import Canvas

Floats = NDArray[np.float64]
_VEIN, _ARTERY = 235, 150  # veins are darker
# Courses of the trunks from the disc as Bezier control points, x toward the macula, y up: two in each half are
# temporal and two nasal, a vein and an artery.
_TEMPORAL = ((0.0, 0.0), (0.0, 0.5), (0.45, 0.82), (1.35, 0.5))
_NASAL = ((0.0, 0.0), (-0.12, 0.22), (-0.3, 0.4), (-0.6, 0.85))
_COURSES = np.array([_TEMPORAL, _TEMPORAL, _NASAL, _NASAL] * 2)
_UP = np.repeat([-1.0, 1.0], 4)
_IS_VEIN = np.array([True, False] * 4)


class Landmarks(NamedTuple):
    """Where the parts of an eye lie, in units of the field's radius.

    Attributes:
        disc: Centre of the optic disc.
        disc_radius: Half its height.
        fovea: Centre of the macula.
        nasal: 1 where the nose is to the right of the picture (a right eye), else -1.
    """

    disc: tuple[float, float]
    disc_radius: float
    fovea: tuple[float, float]
    nasal: int


class Vessels(NamedTuple):
    """Vessels of one order.

    Attributes:
        paths: Points in units, [B, P, 2].
        points: How many points of each count, [B].
        begin: Width at the first point, units, [B].
        end: Width at the last, [B].
        dark: Weight in the mask of blood, 0 to 255, [B].
    """

    paths: Floats
    points: NDArray[np.int64]
    begin: Floats
    end: Floats
    dark: NDArray[np.int64]


def vessel_tree(eye: Landmarks, calibre: float, tortuosity: float, rng: np.random.Generator) -> tuple[Vessels, ...]:
    """Grow the vessels of an eye.

    An artery and a vein run in each quarter. A branch takes about half of its parent's width, leaves at 25 to 70
    degrees and bends back; none enters the avascular zone around the fovea.

    Args:
        eye: Where disc and macula are.
        calibre: Width of a vein at the disc, in units.
        tortuosity: How much vessels wind, 0 to 1.
        rng: Of this eye.

    Returns:
        The eight trunks, their branches, and the branches of those.
    """
    courses = _COURSES * rng.normal(1, 0.12, (8, 1, 2)) + rng.normal(0, 0.08, (8, 4, 2)) * [[[0.4], [1.2], [1.3], [2]]]
    t = np.linspace(0, 1, 20)[:, None]
    bends = np.concatenate([(1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3], 1)
    paths = np.einsum("tk,bkx->btx", bends, courses)
    phase, waves = rng.uniform(0, 2 * np.pi, (2, 8, 1, 2))
    wind = np.sin((6 + waves * 3) * t + phase) * (0.01 + 0.02 * tortuosity) + rng.normal(0, 0.005, paths.shape)
    paths = (paths + wind * np.minimum(1, 4 * t)) * np.stack([np.full(8, -float(eye.nasal)), _UP], 1)[
        :, None
    ] + eye.disc
    wide = (
        calibre * np.where(_IS_VEIN, 1.0, 0.66) * np.where(np.arange(8) % 4 < 2, 1.0, 0.7) * rng.uniform(0.85, 1.1, 8)
    )
    trunks = Vessels(paths, np.full(8, 20), wide, wide * 0.3, np.where(_IS_VEIN, _VEIN, _ARTERY))
    twigs = _branches(trunks, 6, 0.75, tortuosity, eye, rng)
    return trunks, twigs, _branches(twigs, 3, 0.36, tortuosity, eye, rng)


def draw_vessels(canvas: Canvas, mask: NDArray[np.uint8], tree: tuple[Vessels, ...]) -> None:
    """Draw vessels that taper in steps, the thin ones first, into a mask of blood."""
    for order, pieces in ((2, 1), (1, 2), (0, 6)):
        level = tree[order]
        fixed = canvas.fixed(level.paths)
        share = (np.arange(pieces) + 0.5) / pieces
        widths = level.begin[:, None] + (level.end - level.begin)[:, None] * share
        cuts = (level.points[:, None] - 1) * np.arange(pieces + 1) // pieces
        groups: dict[tuple[int, int], list[NDArray[np.int32]]] = {}
        rows = zip(fixed, (widths * 500).astype(int).tolist(), cuts.tolist(), level.dark.tolist(), strict=True)
        for path, width, cut, dark in rows:
            for k in range(pieces):
                groups.setdefault((width[k], dark), []).append(path[cut[k] : cut[k + 1] + 1])
        for (width, dark), paths in sorted(groups.items(), key=lambda entry: entry[0]):
            canvas.lines(mask, paths, (width + 0.5) / 500, dark)


def _branches(
    parents: Vessels, each: int, length: float, tortuosity: float, eye: Landmarks, rng: np.random.Generator
) -> Vessels:
    parent = np.repeat(np.arange(len(parents.paths)), each)
    count, steps = len(parent), 13
    share = rng.uniform(0.15, 0.95, count)
    at = np.maximum(1, (share * (parents.points[parent] - 1)).astype(np.int64))
    begin = parents.paths[parent, at]
    along = begin - parents.paths[parent, at - 1]
    inward = np.sign(along[:, 0] * (eye.fovea[1] - begin[:, 1]) - along[:, 1] * (eye.fovea[0] - begin[:, 0]))
    side = np.where(rng.random(count) < 0.58, inward, -inward)
    away = np.radians(rng.uniform(25, 65, count))
    heading = np.arctan2(along[:, 1], along[:, 0]) + side * away
    turns = rng.normal(0, 0.16 + 0.16 * tortuosity, (count, steps)).cumsum(1)
    angle = heading[:, None] + turns - (side * away * 0.4)[:, None] * np.linspace(0, 1, steps)
    step = length * rng.uniform(0.4, 1.4, count) / steps
    moves = np.stack([np.cos(angle), np.sin(angle)], 2) * step[:, None, None]
    grown = np.concatenate([begin[:, None], begin[:, None] + moves.cumsum(1)], 1)
    near = np.hypot(grown[..., 0] - eye.fovea[0], grown[..., 1] - eye.fovea[1]) < 0.1
    stop = np.where(near.any(1), near.argmax(1), steps + 1)
    wide = parents.begin[parent] * (1 - 0.6 * share) * rng.uniform(0.35, 0.7, count)
    kept = stop >= 3
    return Vessels(grown[kept], stop[kept], wide[kept], wide[kept] * 0.4, parents.dark[parent][kept])
