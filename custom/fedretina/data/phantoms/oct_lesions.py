"""What diseases do to the layers of a retina in cross-section: lift, thicken, fill with fluid, break."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Columns = NDArray[np.float64]  # one value a column of the scan
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
