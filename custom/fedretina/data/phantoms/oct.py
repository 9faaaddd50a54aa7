"""How a phantom OCT scan is drawn: layers from the vitreous to the choroid, a disease, speckle, and the scanner."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.canvas import Canvas, Plane, soften
from fedretina.data.phantoms.oct_lesions import Changes, Columns, diseased, wander
from fedretina.data.phantoms.style import OctStyle

# Reflectivity of the layers on the display's logarithmic scale, 0 (vitreous) to 1, from the vitreous downwards.
_BRIGHTNESS = {
    "vitreous": 0.03,
    "nerve fibres": 0.64,
    "ganglion cells": 0.44,
    "inner nuclear": 0.3,
    "outer plexiform": 0.44,
    "outer nuclear": 0.22,
    "limiting membrane": 0.38,
    "inner segments": 0.3,
    "ellipsoid zone": 0.84,
    "outer segments": 0.55,
    "scar": 0.72,
    "fluid": 0.05,
    "pigment epithelium": 0.97,
    "under the epithelium": 0.42,
    "choroid": 0.6,
}
_LAYERS = list(_BRIGHTNESS)
_INNER = {"outer plexiform": 0.15, "inner nuclear": 0.19, "ganglion cells": 0.48, "nerve fibres": 0.18}
_DYNAMIC = 0.11  # brightness a factor e of intensity: about 40 decibels from black to white


def draw_oct(
    canvas: Canvas,
    style: OctStyle,
    person: np.random.Generator,
    left: bool,
    disease: str,
    amount: float,
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    """One B-scan through the macula.

    Args:
        canvas: What to draw on; its size is the picture's.
        style: The hospital's scanner.
        person: A generator that starts alike for both eyes of a patient.
        left: Whether it is a left eye, whose nerve fibres thicken to the left.
        disease: One of `oct_lesions.DISEASES`.
        amount: How far it has gone, 0 to 1.
        rng: Of this scan.

    Returns:
        uint8 [S, S, 3], grey in all channels.
    """
    x = canvas.x[0].astype(np.float64)
    thick = 2 * style.zoom * person.normal(1, 0.07)
    changes = diseased(x, rng.normal(0, 0.13), disease, amount, rng)
    surfaces = _surfaces(x, style, changes, thick, left, person, rng)
    image = _shade(canvas, style, surfaces, changes, thick, person, rng)
    _paint_fluid(canvas, image, surfaces, changes)
    return _scan(canvas, image, style, rng)


def _surfaces(
    x: Columns,
    style: OctStyle,
    changes: Changes,
    thick: float,
    left: bool,
    person: np.random.Generator,
    rng: np.random.Generator,
) -> dict[str, Columns]:
    """Upper surface of each layer in units, by column, found from Bruch's membrane upwards."""
    pit_width, pit_depth = person.uniform(0.8, 1.15) / style.reach, person.uniform(0.8, 0.97)
    bruch = (
        rng.normal(0.12, 0.14)
        + style.tilt * (rng.normal(0, 0.1) * x - (0.06 + rng.normal(0, 0.09)) * x**2)
        - style.bend * rng.uniform(0.4, 1.2) * x**2
    )
    bruch = bruch + 0.005 * wander(len(x), 14, rng)
    pit = pit_depth * changes.pit * changes.bump(changes.fovea, pit_width)
    rim = changes.bump(changes.fovea, pit_width * 2.6)
    nasal = np.clip((-x if left else x) - changes.fovea, -1, 1)
    inner = 0.46 * thick * (0.86 + 0.26 * rim) * (1 - pit) + thick * changes.inner
    outer = 0.24 * thick * (0.92 + 0.4 * changes.bump(changes.fovea, pit_width * 1.2)) + thick * changes.outer
    raised = thick * (changes.lift + changes.fluid + changes.scar)
    up = {"choroid": bruch, "under the epithelium": bruch - thick * changes.lift}
    below = "under the epithelium"
    heights: dict[str, Columns | float] = {
        "pigment epithelium": 0.07 * thick,
        "fluid": thick * changes.fluid,
        "scar": thick * changes.scar,
        "outer segments": 0.05 * thick,
        "ellipsoid zone": 0.045 * thick,
        "inner segments": 0.035 * thick,
        "limiting membrane": 0.014 * thick,
        "outer nuclear": np.maximum(outer - _unevenness(x, raised), 0.07 * thick),
        **{name: share * inner for name, share in _INNER.items()},
    }
    heights["nerve fibres"] = heights["nerve fibres"] * (1 + 0.8 * nasal)
    for name, height in heights.items():
        up[name] = up[below] - height
        below = name
    return up


def _unevenness(x: Columns, raised: Columns) -> Columns:
    """What the outer nuclear layer gives way to, so that small mounds do not reach the inner layers."""
    import cv2

    smooth = cv2.GaussianBlur(raised[None], (0, 0), 0.09 / float(x[1] - x[0]), borderType=cv2.BORDER_REPLICATE)[0]
    return np.asarray(raised - smooth)


def _shade(
    canvas: Canvas,
    style: OctStyle,
    surfaces: dict[str, Columns],
    changes: Changes,
    thick: float,
    person: np.random.Generator,
    rng: np.random.Generator,
) -> Plane:
    """Reflectivity of every pixel, float32 [side, side]."""
    import cv2

    side = canvas.side
    values = np.empty((len(_LAYERS), side), np.float32)
    for number, name in enumerate(_LAYERS):
        values[number] = _BRIGHTNESS[name]
    dim = changes.bands.astype(np.float32)
    for name in ("ellipsoid zone", "outer segments"):
        values[_LAYERS.index(name)] *= 0.5 + 0.5 * dim
    values[_LAYERS.index("under the epithelium")] = changes.lift_grey
    layer = np.zeros((side, side), np.uint8)
    for name in _LAYERS[1:]:
        layer += canvas.y >= surfaces[name].astype(np.float32)
    image = np.take_along_axis(values, layer.astype(np.intp), 0)

    bruch = surfaces["choroid"].astype(np.float32)
    deep = np.maximum(canvas.y - bruch, 0)
    lumen = np.clip(canvas.smooth_noise(rng, 26, 34) + np.float32(0.1), 0, 1) * np.clip(deep / np.float32(0.04), 0, 1)
    fade = np.exp(deep * np.float32(-1 / (style.choroid * person.uniform(0.2, 0.34))))
    fade *= 1 - np.float32(0.75) * lumen * np.exp(deep * np.float32(-1 / 0.2))
    image *= np.where(deep > 0, fade, 1)
    image *= 1 + np.float32(0.09) * canvas.smooth_noise(rng, 60, 80)
    if changes.membrane:
        line = np.abs(canvas.y - surfaces["nerve fibres"].astype(np.float32)) < 0.02 * thick + 1 / side
        image = np.where(line, np.maximum(image, 0.55 + 0.4 * changes.membrane), image)

    shadow = changes.shadow.copy()
    for at in rng.uniform(-1, 1, rng.poisson(3)):  # vessels of the inner retina cast shadows
        shadow += rng.uniform(0.1, 0.35) * changes.bump(at, rng.uniform(0.006, 0.014), 4)
    shadow += 0.06 * wander(side, 9, rng)
    top = surfaces["ganglion cells"].astype(np.float32)
    image *= 1 - np.where(canvas.y > top, np.clip(shadow, -0.35, 0.8).astype(np.float32), 0)
    if rng.random() < 0.2:  # the vitreous has come off and hangs before the retina as a faint line
        loose = np.mean(surfaces["nerve fibres"]) - thick * (rng.uniform(0.1, 0.8) + 0.4 * rng.normal() * changes.x)
        loose = loose + 0.02 * wander(side, 6, rng)
        image += np.float32(0.22) * (np.abs(canvas.y - loose.astype(np.float32)) < 1.2 / side)
    return np.asarray(cv2.GaussianBlur(image, (0, 0), max(0.45, 0.0022 * side)), dtype=np.float32)


def _paint_fluid(canvas: Canvas, image: Plane, surfaces: dict[str, Columns], changes: Changes) -> None:
    """Cysts and specks of exudate between the inner nuclear layer and the outer limiting membrane."""
    if not changes.cysts and not changes.foci:
        return
    top, bottom = surfaces["inner nuclear"], surfaces["limiting membrane"]

    def place(x: Columns, depth: Columns) -> tuple[NDArray[np.float64], Columns]:
        begin, high = np.interp(x, changes.x, top), np.interp(x, changes.x, bottom - top)
        return np.stack([x, begin + depth * high], 1), high

    if changes.cysts:
        x, depth, wide, tall = np.array(changes.cysts).T
        points, high = place(x, depth)
        holes, walls = canvas.empty(), canvas.empty()
        axes = np.stack([wide, tall * high], 1)
        canvas.ellipses(walls, points, axes + 0.008, 0.0, 255)
        canvas.ellipses(holes, points, axes, 0.0, 255)
        image += np.float32(0.1) * soften(walls, 0.6)
        hole = soften(holes, 0.6)
        image += hole * (np.float32(0.05) - image)
    if changes.foci:
        x, depth = np.array(changes.foci).T
        dots = canvas.empty()
        points, _ = place(x, depth)
        canvas.ellipses(dots, points, np.full((len(x), 2), 0.009), 0.0, 220)
        dot = soften(dots, 0.5)
        image += dot * (np.float32(0.9) - image)


def _scan(canvas: Canvas, image: Plane, style: OctStyle, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Speckle, the scanner's grey scale, and the margins of its motion correction.

    Speckle of one look has exponentially distributed intensity (Goodman); the display is logarithmic, so it adds
    its logarithm.
    """
    import cv2

    side, size = canvas.side, canvas.size
    speckle = rng.standard_exponential((side, side), dtype=np.float32)
    grain = style.grain * side
    if grain >= 0.3:
        speckle = cv2.GaussianBlur(speckle, (0, 0), grain * 1.2, sigmaY=grain * 0.8)
    speckle = 1 + (speckle - 1) * np.float32(min(1.0, 2.2 / style.looks**0.5) * max(1.0, 1.6 * grain))
    image += np.float32(_DYNAMIC) * np.log(np.maximum(speckle, np.float32(0.05)))
    gain = rng.lognormal(0, 0.04 + 0.2 * style.spread)
    grey = np.float32(style.floor) + np.float32(style.contrast * gain) * image
    small = cv2.resize(grey, (size, size), interpolation=cv2.INTER_AREA)
    if rng.random() < style.border:
        axis = (np.arange(size, dtype=np.float32) + 0.5) / size
        for flip in (False, True):
            high, slope = rng.uniform(-0.04, 0.12), rng.normal(0, 0.05)
            margin = (axis[:, None] < high + slope * (axis[None, :] - 0.5))[:: -1 if flip else 1]
            small[margin] = 255
    result: NDArray[np.uint8] = np.clip(small, 0, 255).astype(np.uint8)
    return np.repeat(result[..., None], 3, 2)
