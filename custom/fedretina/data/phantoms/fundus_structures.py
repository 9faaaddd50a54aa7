"""What is drawn into a fundus: its vessels and its lesions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.canvas import Canvas, Points

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


class Masks(NamedTuple):
    """What is drawn over the retina, each uint8 [side, side]: 0 is nothing, 255 hides what lies below."""

    vessels: NDArray[np.uint8]
    blood: NDArray[np.uint8]
    exudates: NDArray[np.uint8]
    wool: NDArray[np.uint8]


def draw_lesions(
    canvas: Canvas, masks: Masks, eye: Landmarks, trunks: Vessels, severity: float, rng: np.random.Generator
) -> None:
    """Draw what a severity brings, in the order in which the disease brings it.

    Microaneurysms from mild disease on; dot, blot and flame haemorrhages, hard exudates and cotton-wool spots from
    moderate; many haemorrhages and beaded veins in severe; new vessels, bleeding before the retina and the scars of
    laser treatment in proliferative disease (Wilkinson et al. 2003). Lesions are somewhat larger than life, so that
    they survive at 64 pixels.

    Args:
        canvas: What to draw on.
        masks: Changed in place.
        eye: Where disc and macula are.
        trunks: The large vessels of this eye.
        severity: On the ICDR scale, 0 to 4 and a little beyond.
        rng: Of this picture.
    """
    _microaneurysms(canvas, masks, eye, rng.poisson(10 * min(severity, 2.5) ** 1.2), rng)
    moderate = max(0.0, severity - 1.2)
    _blots(canvas, masks, eye, rng.poisson(9 * moderate**1.2), rng)
    _flames(canvas, masks, eye, rng.poisson(2.5 * moderate), rng)
    for _ in range(rng.poisson(1.8 * min(moderate, 2))):
        _exudates(canvas, masks, eye, rng)
    _wool(canvas, masks, eye, rng.poisson(1.6 * max(0.0, severity - 1.7)), rng)
    if severity > 2.6:
        _beading(canvas, masks, trunks, min(1.0, severity - 2.5), rng)
    proliferative = max(0.0, severity - 3.3)
    for _ in range(rng.poisson(5.5 * proliferative)):
        _new_vessels(canvas, masks, eye, trunks, rng)
    if rng.random() < 0.65 * proliferative:
        _boat(canvas, masks, rng)
    if rng.random() < 0.4 * proliferative:
        _laser_scars(canvas, masks, eye, rng)


def draw_lookalikes(canvas: Canvas, masks: Masks, eye: Landmarks, rng: np.random.Generator) -> None:
    """What is no retinopathy and looks a little like it: drusen, a naevus, dust on the lens; in every grade alike."""
    if rng.random() < 0.16:
        count = int(rng.integers(3, 14))
        _spots(canvas, masks.exudates, _around(eye.fovea, 0.22, count, rng), (0.008, 0.02), (50, 110), rng)
    if rng.random() < 0.06:
        canvas.ellipses(masks.vessels, _anywhere(1, rng), rng.uniform(0.04, 0.09, (1, 2)), rng.uniform(0, 180), 90)
    _spots(canvas, masks.blood, _anywhere(rng.poisson(0.5), rng), (0.01, 0.02), (50, 130), rng)
    _spots(canvas, masks.wool, _anywhere(rng.poisson(0.25), rng), (0.02, 0.05), (60, 150), rng)


def _anywhere(count: int, rng: np.random.Generator) -> Points:
    """Points spread over the field, [count, 2]."""
    angle, far = rng.uniform(0, 2 * np.pi, count), 0.88 * np.sqrt(rng.uniform(0.01, 1, count))
    return np.stack([far * np.cos(angle), far * np.sin(angle)], 1)


def _around(point: tuple[float, float], spread: float, count: int, rng: np.random.Generator) -> Points:
    return np.asarray(point) + rng.normal(0, spread, (count, 2))


def _pole(eye: Landmarks, count: int, rng: np.random.Generator) -> Points:
    """Points where retinopathy sits: over the posterior pole, denser around the macula, none on disc and fovea."""
    found = np.where(rng.random((count, 1)) < 0.55, _around(eye.fovea, 0.36, count, rng), _anywhere(count, rng))
    free = np.hypot(*(found - eye.disc).T) > 1.25 * eye.disc_radius
    return np.asarray(found[free & (np.hypot(*(found - eye.fovea).T) > 0.05)])


def _spots(
    canvas: Canvas,
    mask: NDArray[np.uint8],
    points: Points,
    size: tuple[float, float],
    value: tuple[int, int],
    rng: np.random.Generator,
) -> None:
    """Round spots of random size and weight."""
    sizes = np.repeat(rng.uniform(*size, (len(points), 1)), 2, 1)
    canvas.ellipses(mask, points, sizes, 0.0, rng.integers(*value, len(points)))


def _microaneurysms(canvas: Canvas, masks: Masks, eye: Landmarks, count: int, rng: np.random.Generator) -> None:
    _spots(canvas, masks.blood, _pole(eye, count, rng), (0.008, 0.015), (205, 250), rng)


def _blots(canvas: Canvas, masks: Masks, eye: Landmarks, count: int, rng: np.random.Generator) -> None:
    """Deep haemorrhages: round or lobed, with edges that are never quite smooth."""
    points = _pole(eye, count, rng)
    lobes = np.repeat(np.arange(len(points)), rng.integers(1, 4, len(points)))
    size = (0.011 + 0.034 * rng.random(len(points)) ** 2)[lobes, None]
    axes = size * np.stack([rng.uniform(0.7, 1.2, len(lobes)), rng.uniform(0.5, 1.0, len(lobes))], 1)
    places = points[lobes] + rng.normal(0, 0.55, (len(lobes), 2)) * size
    canvas.ellipses(
        masks.blood, places, axes, rng.uniform(0, 180, len(lobes)), rng.integers(170, 245, len(points))[lobes]
    )


def _flames(canvas: Canvas, masks: Masks, eye: Landmarks, count: int, rng: np.random.Generator) -> None:
    """Haemorrhages in the nerve fibre layer: streaks along the fibres, which leave the disc like rays."""
    points = np.repeat(_pole(eye, count, rng), 3, 0)
    count = len(points)
    turns = np.degrees(np.arctan2(points[:, 1] - eye.disc[1], points[:, 0] - eye.disc[0])) + rng.normal(0, 9, count)
    long = rng.uniform(0.02, 0.07, (count, 1))
    axes = long * np.stack([np.ones(count), rng.uniform(0.13, 0.25, count)], 1)
    places = points + rng.normal(0, 0.012, (count, 2))
    canvas.ellipses(masks.blood, places, axes, turns, rng.integers(140, 225, count))


def _exudates(canvas: Canvas, masks: Masks, eye: Landmarks, rng: np.random.Generator) -> None:
    """A group of hard exudates near the macula: a cluster, or a ring around a leaking spot."""
    centre = _around(eye.fovea, 0.24, 1, rng)[0]
    count = int(rng.integers(10, 60))
    if rng.random() < 0.4:
        angle = rng.uniform(0, 2 * np.pi) + rng.uniform(0, rng.uniform(2.5, 6.3), count)
        far = rng.uniform(0.08, 0.17) * rng.normal(1, 0.13, count)
        points = centre + np.stack([np.cos(angle), np.sin(angle)], 1) * far[:, None]
    else:
        points = centre + rng.normal(0, 1, (count, 2)) * rng.uniform(0.03, 0.1, 2)
    size = (0.004 + 0.012 * rng.random((count, 1)) ** 3) * np.stack([rng.uniform(0.8, 1.7, count), np.ones(count)], 1)
    canvas.ellipses(masks.exudates, points, size, rng.uniform(0, 180, count), rng.integers(160, 255, count))


def _wool(canvas: Canvas, masks: Masks, eye: Landmarks, count: int, rng: np.random.Generator) -> None:
    """Cotton-wool spots: soft white patches between the arcades and the disc."""
    angle, far = rng.uniform(0, 2 * np.pi, count), rng.uniform(0.25, 0.65, count)
    points = np.repeat(eye.disc + np.stack([far * np.cos(angle), far * np.sin(angle)], 1), 3, 0)
    size = np.repeat(rng.uniform(0.028, 0.052, (count, 1)), 3, 0)
    axes = size * np.stack([np.ones(3 * count), rng.uniform(0.45, 0.9, 3 * count)], 1)
    places = points + rng.normal(0, 0.45, (3 * count, 2)) * size
    canvas.ellipses(masks.wool, places, axes, rng.uniform(0, 180, 3 * count), 225)


def _beading(canvas: Canvas, masks: Masks, trunks: Vessels, amount: float, rng: np.random.Generator) -> None:
    """Veins that are tied off like strings of beads."""
    for trunk in range(0, 8, 2):
        if rng.random() < 0.5 * amount:
            points = trunks.paths[trunk, 4:16:2]
            size = np.full((len(points), 2), trunks.begin[trunk] * rng.uniform(0.7, 0.9))
            canvas.ellipses(masks.vessels, points, size, 0.0, trunks.dark[trunk])


def _new_vessels(canvas: Canvas, masks: Masks, eye: Landmarks, trunks: Vessels, rng: np.random.Generator) -> None:
    """A tuft of fine loops, on the disc or beside one of the arcades."""
    beside = trunks.paths[int(rng.integers(8)), int(rng.integers(5, 14))]
    centre = np.asarray(eye.disc) if rng.random() < 0.5 else beside
    count = int(rng.integers(6, 13))
    bend = rng.choice([-0.45, 0.45], (count, 1))
    turn = rng.uniform(0, 2 * np.pi, (count, 1)) + np.cumsum(rng.normal(bend, 0.45, (count, 12)), 1)
    steps = np.stack([np.cos(turn), np.sin(turn)], 2) * rng.uniform(0.012, 0.026, (count, 1, 1))
    paths = centre + rng.normal(0, 0.03, (count, 1, 2)) + steps.cumsum(1)
    canvas.lines(masks.blood, list(canvas.fixed(paths)), 0.011, 205)


def _boat(canvas: Canvas, masks: Masks, rng: np.random.Generator) -> None:
    """Blood between retina and vitreous, which settles with a level top."""
    x, y = _anywhere(1, rng)[0] * 0.75
    long, deep = rng.uniform(0.1, 0.2), rng.uniform(0.06, 0.12)
    angle = np.linspace(0, np.pi, 24)
    rim = np.stack([x + long * np.cos(angle), y + deep * np.sin(angle) + rng.normal(0, 0.004, 24)], 1)
    canvas.polygon(masks.blood, rim, 245)


def _laser_scars(canvas: Canvas, masks: Masks, eye: Landmarks, rng: np.random.Generator) -> None:
    """Burns outside the arcades: pale, many with a dark heart."""
    points = _anywhere(int(rng.integers(40, 110)), rng)
    free = np.hypot(*(points - eye.disc).T) > 0.3
    points = points[free & (np.hypot(*(points - eye.fovea).T) > 0.58)]
    _spots(canvas, masks.wool, points, (0.02, 0.032), (90, 170), rng)
    _spots(canvas, masks.vessels, points[::2], (0.008, 0.014), (120, 180), rng)
