"""How a phantom OCT scan is drawn: layers from the vitreous to the choroid, a disease, speckle, and the scanner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.canvas import Canvas, Plane, soften
from fedretina.data.phantoms.kind import Case, PhantomKind, Preset

if TYPE_CHECKING:
    from fedretina.data.phantoms.hospital import PhantomHospital

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
        disease: One of `DISEASES`.
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


Columns = NDArray[np.float64]  # one value per column of the scan
DISEASES = ("normal", "drusen", "amd", "cnv", "dme", "rvo", "erm")


@dataclass
class Changes:
    """How a scan differs from a healthy one; lengths are in thicknesses of a healthy retina.

    Attributes:
        x: Of each column, -1 to 1.
        fovea: Where the pit is.
        lift: Of the pigment epithelium over Bruch's membrane: drusen and detachments.
        lift_grey: How bright what lies under the lifted epithelium is, 0 to 1.
        fluid: Under the retina, dark.
        scar: Bright material under the retina, as a neovascular membrane makes.
        outer: Thickening of the outer nuclear layer.
        inner: Thickening of the layers above it.
        pit: How much of the foveal pit is left, 0 to 1.
        bands: How much of the photoreceptors' bright bands is left, 0 to 1.
        shadow: Light lost below the retina's surface; negative where more gets through.
        membrane: Brightness of a membrane on the surface, 0 to 1.
        cysts: Rows of x, depth (0 at the top of the inner nuclear layer, 1 at the outer limiting membrane), half
            width in units, and half height as a share of that stretch.
        foci: Bright dots: x, depth as above.
    """

    x: Columns
    fovea: float
    lift: Columns = field(init=False)
    lift_grey: float = 0.42
    fluid: Columns = field(init=False)
    scar: Columns = field(init=False)
    outer: Columns = field(init=False)
    inner: Columns = field(init=False)
    pit: float = 1.0
    bands: Columns = field(init=False)
    shadow: Columns = field(init=False)
    membrane: float = 0.0
    cysts: list[tuple[float, float, float, float]] = field(default_factory=list)
    foci: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("lift", "fluid", "scar", "outer", "inner", "shadow"):
            setattr(self, name, np.zeros_like(self.x))
        self.bands = np.ones_like(self.x)

    def bump(self, at: float, wide: float, power: float = 2.0) -> Columns:
        """A bump of height 1; a power above 2 gives it a flat top and steep sides."""
        return np.asarray(np.exp(-0.5 * np.abs((self.x - at) / wide) ** power))


def wander(columns: int, knots: int, rng: np.random.Generator) -> Columns:
    """A smooth random line of about unit variance at its knots, [columns]."""
    import cv2

    line = cv2.resize(rng.standard_normal((1, knots)), (columns, 1), interpolation=cv2.INTER_CUBIC)
    return np.asarray(line[0])


def diseased(x: Columns, fovea: float, disease: str, amount: float, rng: np.random.Generator) -> Changes:
    """What a disease does to a scan.

    Args:
        x: Of each column, -1 to 1.
        fovea: Where the pit is.
        disease: One of `DISEASES`; "amd" is drusen or a neovascular membrane.
        amount: How far it has gone, 0 to 1.
        rng: Of this scan.
    """
    changes = Changes(x, fovea)
    if disease == "amd":
        disease = "drusen" if rng.random() < 0.5 else "cnv"
    if disease == "drusen":
        _drusen(changes, amount, rng)
    elif disease == "cnv":
        _neovascular(changes, amount, rng)
    elif disease == "dme":
        _oedema(changes, amount, 0.25, rng)
    elif disease == "rvo":
        _occlusion(changes, amount, rng)
    elif disease == "erm":
        _membrane(changes, amount, rng)
    _ageing(changes, rng)
    return changes


def _drusen(changes: Changes, amount: float, rng: np.random.Generator) -> None:
    """Mounds under the pigment epithelium, from small hard ones to soft ones that flow together."""
    for _ in range(2 + rng.poisson(0.5 + 8 * amount)):
        wide = rng.uniform(0.024, 0.055) * (0.7 + 0.6 * amount)
        high = rng.uniform(0.07, 0.2) * (0.4 + amount)
        mound = changes.bump(changes.fovea + rng.normal(0, 0.36), wide, 2.4)
        changes.lift = np.maximum(changes.lift, high * mound)
        changes.bands = np.minimum(changes.bands, 1 - 0.5 * amount * mound)
    changes.lift_grey = rng.uniform(0.35, 0.6)


def _neovascular(changes: Changes, amount: float, rng: np.random.Generator) -> None:
    """A membrane of new vessels: a ragged detachment, bright material above it, fluid beside it, broken bands."""
    centre, wide = changes.fovea + rng.normal(0, 0.17), rng.uniform(0.1, 0.26) * (0.7 + 0.5 * amount)
    ragged = 1 + 0.3 * wander(len(changes.x), 30, rng)
    body = changes.bump(centre, wide, 3)
    changes.lift = rng.uniform(0.12, 0.45) * amount * body * np.clip(ragged, 0.3, 1.8)
    changes.lift_grey = float(rng.choice([0.12, 0.45, 0.6]))
    changes.scar = rng.uniform(0.1, 0.4) * amount * changes.bump(centre + rng.normal(0, 0.06), wide * 0.7)
    changes.scar *= np.clip(ragged[::-1], 0.4, 1.6)
    if rng.random() < 0.75:
        beside = changes.bump(
            centre + rng.choice([-1, 1]) * wide * rng.uniform(0.3, 1.2), wide * rng.uniform(0.5, 1), 3
        )
        changes.fluid = rng.uniform(0.12, 0.4) * amount * beside
    changes.inner = rng.uniform(0, 0.25) * amount * changes.bump(centre, wide * 1.5)
    changes.pit = 1 - 0.6 * amount * rng.random()
    changes.bands = 1 - min(1.0, 0.4 + amount) * changes.bump(centre, wide * 1.2, 3)
    changes.shadow = rng.uniform(-0.3, 0.3) * changes.bump(centre, wide)
    if rng.random() < 0.45:
        _cysts(changes, centre, wide, 1 + rng.poisson(3 * amount), rng)
    if rng.random() < 0.5:
        extra = Changes(changes.x, changes.fovea)
        _drusen(extra, 0.5 * amount, rng)
        changes.lift = np.maximum(changes.lift, extra.lift)


def _oedema(changes: Changes, amount: float, fluid: float, rng: np.random.Generator) -> None:
    """A leaking macula: thickened, honeycombed by cysts between its layers, with specks of exudate."""
    centre, wide = changes.fovea + rng.normal(0, 0.16), rng.uniform(0.18, 0.42)
    swell = rng.uniform(0.2, 0.75) * amount * changes.bump(centre, wide)
    share = rng.uniform(0.4, 0.8)
    changes.outer, changes.inner = swell * share, swell * (1 - share)
    changes.pit = 1 - amount * rng.uniform(0.3, 1.0)
    _cysts(changes, centre, wide * 0.7, 1 + rng.poisson(1 + 11 * amount), rng)
    count = rng.poisson(1 + 8 * amount)
    changes.foci += list(zip(rng.normal(centre, wide, count), rng.uniform(0, 1, count), strict=True))
    if rng.random() < fluid:
        changes.fluid = rng.uniform(0.1, 0.45) * amount * changes.bump(changes.fovea, rng.uniform(0.1, 0.25), 3)


def _occlusion(changes: Changes, amount: float, rng: np.random.Generator) -> None:
    """An occluded vein: oedema of one half, with the inner layers thickest."""
    side = rng.choice([-1, 1])
    _oedema(changes, amount, 0.4, rng)
    half = 1 / (1 + np.exp(-side * (changes.x - changes.fovea) / 0.08))
    changes.inner = changes.inner + rng.uniform(0.15, 0.4) * amount * half
    changes.outer = changes.outer * (0.3 + 0.7 * half)


def _membrane(changes: Changes, amount: float, rng: np.random.Generator) -> None:
    """An epiretinal membrane: a bright line that wrinkles the surface and pulls the pit flat."""
    waves = np.sin(changes.x * rng.uniform(25, 60) + rng.uniform(0, 6)) * rng.uniform(0.01, 0.04)
    changes.inner = amount * (rng.uniform(0.1, 0.35) * changes.bump(changes.fovea, 0.5) + np.abs(waves))
    changes.pit = 1 - amount * rng.uniform(0.5, 1)
    changes.membrane = 0.3 + 0.7 * amount


def _cysts(changes: Changes, centre: float, wide: float, count: int, rng: np.random.Generator) -> None:
    for _ in range(count):
        if rng.random() < 0.6:  # tall ones between the fibres of Henle's layer, small ones above
            depth, size, high = rng.uniform(0.5, 0.78), rng.uniform(0.018, 0.06), rng.uniform(0.12, 0.3)
        else:
            depth, size, high = rng.uniform(0.05, 0.25), rng.uniform(0.012, 0.035), rng.uniform(0.04, 0.1)
        changes.cysts.append((rng.normal(centre, wide), depth, size, high))


def _ageing(changes: Changes, rng: np.random.Generator) -> None:
    """What healthy and ill retinas share: a waver of the epithelium, a small hard druse, a speck."""
    if rng.random() < 0.25:
        mound = rng.uniform(0.02, 0.055) * changes.bump(rng.uniform(-0.8, 0.8), rng.uniform(0.02, 0.035))
        changes.lift = np.maximum(changes.lift, mound)
    if rng.random() < 0.2:
        changes.foci.append((rng.uniform(-0.7, 0.7), rng.uniform(0, 1)))
    changes.pit *= rng.uniform(0.75, 1.0)


class OctStyle(NamedTuple):
    """The OCT scanner of a hospital.

    Attributes:
        zoom: Thickness of a healthy retina in parts of the picture's height.
        reach: Width of a scan in millimetres.
        floor: Grey level of the vitreous, 0 to 255.
        contrast: Grey levels between vitreous and the brightest layer.
        looks: Independent scans averaged into one picture; more of them, less speckle.
        grain: Size of the speckle in parts of the picture's side.
        tilt: How much scans are tilted and bent at random, 1 is usual.
        bend: How much all of them are bent into a bowl, in parts of half the picture.
        border: How often the scanner's motion correction leaves white margins, 0 to 1.
        choroid: How deep the light reaches below the retina, 1 is usual.
        spread: How much the hospital's scans differ among each other in light, 0 to 1.
    """

    zoom: float = 0.2
    reach: float = 6.0
    floor: float = 22.0
    contrast: float = 190.0
    looks: float = 6.0
    grain: float = 0.004
    tilt: float = 1.0
    bend: float = 0.0
    border: float = 0.0
    choroid: float = 1.0
    spread: float = 0.3


# Jumaili 2026, Table 1, has two sets, Kermany and Duke; three clients share Kermany, and how is not said. Their counts
# below are a Dirichlet division of each class of the table (alpha 0.5, rounded; `generator("oct clients", 16)`, one
# draw a class in this order, the first of these seeds that gives each client 1.5 % of every class and a fifth of the
# whole), made once and kept, so that no release of NumPy changes it. The paper's four classes add up to 83487 and not
# to its total of 84495. Duke has the same four in the paper; the public Duke sets know AMD, DME and NORMAL alone.
_SPECTRALIS = OctStyle(0.19, 6.0, 14.0, 178.0, 6.0, 0.003, 1.0, 0.0, 0.45, 0.8, 0.25)
_OTHER = OctStyle(0.23, 9.0, 16.0, 188.0, 16.0, 0.0032, 0.7, 0.42, 0.0, 1.2, 0.4)
OCT = (
    Preset("oct4", 1.2, (4009, 4047, 828, 24747), _SPECTRALIS, 0.05),
    Preset("oct4", 1.1, (10525, 1001, 5574, 11059), _SPECTRALIS, 0.05),
    Preset("oct4", 1.0, (11781, 3569, 4947, 1400), _SPECTRALIS, 0.05),
    Preset("oct4", 0.7, (1600, 1050, 1100, 1250), _OTHER, 0.05),
)


def _drawn_style(rng: np.random.Generator) -> OctStyle:
    """A scanner that no preset describes."""
    return OctStyle(
        zoom=rng.uniform(0.17, 0.3),
        reach=float(rng.choice([6.0, 6.0, 9.0])),
        floor=rng.uniform(14, 45),
        contrast=rng.uniform(150, 205),
        looks=rng.uniform(2, 14),
        grain=rng.uniform(0.003, 0.007),
        tilt=rng.uniform(0.6, 1.3),
        bend=rng.uniform(0, 0.4),
        border=float(rng.choice([0.0, 0.0, 0.4])),
        choroid=rng.uniform(0.7, 1.3),
        spread=rng.uniform(0.2, 0.5),
    )


def _picture(
    hospital: PhantomHospital,
    case: Case,
    canvas: Canvas,
    person: np.random.Generator,
    drift: float,
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    """See `PhantomKind.picture`."""
    amount = float(np.clip(0.62 + 0.24 * drift, 0.12, 1))
    return draw_oct(canvas, hospital.style, person, case.left, hospital.diseases()[case.truth], amount, rng)


PHANTOMS = PhantomKind(presets=OCT, drawn_style=_drawn_style, shown=DISEASES, both_eyes=0.5, picture=_picture)
