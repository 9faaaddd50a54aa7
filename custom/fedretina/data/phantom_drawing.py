"""How a phantom fundus is drawn: retina, vessels, optic disc, and lesions that grow with the severity."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.seeds import generator

SCALE = 2  # everything is drawn this much larger and averaged down
_SHIFT = 4  # fractional bits of cv2's coordinates
Canvas = NDArray[np.float32]


class Style(NamedTuple):
    """The camera of a hospital.

    Attributes:
        retina: Colour of the retina, RGB 0 to 255.
        gain: Overall brightness.
        cut: Height of the field of view over its width; below 1 the top and bottom are cut off.
        haze: Blur in parts of the image's side.
        noise: Standard deviation of the sensor's noise, grey levels.
    """

    retina: tuple[float, float, float]
    gain: float
    cut: float
    haze: float
    noise: float


def camera_style(seed: tuple[int | str, ...]) -> Style:
    """Draw the style of a hospital's camera."""
    rng = generator(*seed, "style")
    red = rng.uniform(165, 225)
    green = red * rng.uniform(0.42, 0.68)
    blue = green * rng.uniform(0.22, 0.75)
    return Style(
        retina=(red, green, blue),
        gain=rng.uniform(0.8, 1.1),
        cut=float(rng.choice([1.0, 1.0, 0.84])),
        haze=rng.uniform(0.002, 0.008),
        noise=rng.uniform(2, 5),
    )


class Field:
    """Coordinates of the canvas, shared by all images: x and y in [-1, 1]."""

    def __init__(self, side: int) -> None:
        self.side = side
        axis = ((np.arange(side, dtype=np.float32) + 0.5) / side) * 2 - 1
        self.x = axis[None, :]
        self.y = axis[:, None]
        self.radius2 = self.x**2 + self.y**2

    def at(self, *point: float) -> tuple[int, ...]:
        """Units to cv2's fixed-point pixels."""
        return tuple(round(((value + 1) / 2 * self.side - 0.5) * 2**_SHIFT) for value in point)

    def length(self, units: float) -> int:
        """A radius in units to fixed-point pixels, at least half a pixel."""
        return max(1 << (_SHIFT - 1), round(units / 2 * self.side * (1 << _SHIFT)))

    def blob(self, x: float, y: float, width: float) -> Canvas:
        """A Gaussian bump of height 1."""
        column = np.exp(-((self.x - np.float32(x)) ** 2) / np.float32(2 * width**2))
        row = np.exp(-((self.y - np.float32(y)) ** 2) / np.float32(2 * width**2))
        return np.asarray(column * row, dtype=np.float32)


def draw(field: Field, style: Style, severity: float, bad: bool, rng: np.random.Generator) -> NDArray[np.uint8]:
    """One image, uint8 [S, S, 3]."""
    import cv2

    side = field.side
    eye = 1 if rng.random() < 0.5 else -1  # right eye has its disc on the right
    disc = (eye * rng.uniform(0.42, 0.6), rng.uniform(-0.12, 0.12))
    macula = (disc[0] - eye * rng.uniform(0.5, 0.62), disc[1] + rng.uniform(0.02, 0.12))
    colour = np.array(style.retina, np.float32) * rng.uniform(0.93, 1.06, 3).astype(np.float32)

    # Light: brighter on one side, darker to the rim; the choroid shows as a soft mottle.
    mottle = cv2.resize(rng.normal(0, 1, (9, 9)).astype(np.float32), (side, side), interpolation=cv2.INTER_CUBIC)
    light = 1.08 - 0.3 * field.radius2 + rng.uniform(-0.1, 0.1) * field.x + rng.uniform(-0.1, 0.1) * field.y
    light = light + 0.035 * mottle
    light -= rng.uniform(0.25, 0.4) * field.blob(*macula, 0.13)
    base = np.clip(light[..., None] * colour, 0, 255).astype(np.uint8)

    _vessels(base, field, disc, macula, eye, colour, rng)
    _disc(base, field, disc, colour, rng)
    _lesions(base, field, severity, disc, macula, colour, rng)

    gain = style.gain * rng.uniform(0.9, 1.08)
    haze = style.haze * rng.uniform(0.7, 1.5)
    if bad:
        if rng.random() < 0.5:
            haze += rng.uniform(0.03, 0.06)
        gain *= rng.uniform(0.2, 0.5)
    if haze * side > 0.3:
        base = cv2.GaussianBlur(base, (0, 0), haze * side)
    size = side // SCALE
    small = cv2.resize(base, (size, size), interpolation=cv2.INTER_AREA).astype(np.float32)
    small *= np.float32(gain)
    if bad and rng.random() < 0.5:
        veil = cv2.resize(
            field.blob(rng.uniform(-0.6, 0.6), rng.uniform(-0.6, 0.6), rng.uniform(0.4, 0.8)), (size, size)
        )
        small += veil[..., None] * np.array([90, 75, 60], np.float32)
    small += rng.standard_normal(small.shape, dtype=np.float32) * np.float32(style.noise)
    rim = np.full((side, side), 0, np.uint8)
    cv2.circle(rim, (side // 2, side // 2), round(side * rng.uniform(0.475, 0.498)), 255, -1, cv2.LINE_AA)
    cut = round(side * (1 - style.cut) / 2)
    if cut:
        rim[:cut] = 0
        rim[-cut:] = 0
    mask = cv2.resize(rim, (size, size), interpolation=cv2.INTER_AREA).astype(np.float32) / 255
    image: NDArray[np.uint8] = np.clip(small * mask[..., None] + 2, 0, 255).astype(np.uint8)
    return image


def _vessels(
    base: NDArray[np.uint8],
    field: Field,
    disc: tuple[float, float],
    macula: tuple[float, float],
    eye: int,
    colour: Canvas,
    rng: np.random.Generator,
) -> None:
    """Four arcades from the disc around the macula, each with branches that thin out."""
    t = np.linspace(0, 1, 14)
    for up in (-1, 1):
        for temporal in (True, False):
            reach = rng.uniform(0.5, 0.68) if temporal else rng.uniform(0.5, 0.9)
            end = -eye * rng.uniform(1.0, 1.35) if temporal else eye * rng.uniform(0.2, 0.6)
            x = disc[0] + end * t**1.15
            arch = np.sin(np.pi * np.minimum(t * 0.85, 1)) if temporal else t**0.7
            y = disc[1] + up * reach * arch + np.cumsum(rng.normal(0, 0.012, len(t))) * 0.6
            dark = tuple(float(value) for value in colour * np.array([0.66, 0.45, 0.5], np.float32))
            width = field.side / 64 * rng.uniform(0.8, 1.3)
            _line(base, field, x, y, width, dark)
            for _ in range(3 if temporal else 1):
                k = int(rng.integers(3, 10))
                s = np.linspace(0, rng.uniform(0.3, 0.55), 6)
                toward = np.arctan2(macula[1] - y[k], macula[0] - x[k]) if rng.random() < 0.4 else up * 1.3
                bend = toward + rng.normal(0, 0.45) + s * rng.normal(0, 1.2)
                _line(base, field, x[k] + s * np.cos(bend), y[k] + s * np.sin(bend), width * 0.6, dark)


def _line(
    base: NDArray[np.uint8],
    field: Field,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    width: float,
    colour: tuple[float, ...],
) -> None:
    import cv2

    points = np.stack([x, y], 1)
    fixed = np.round(((points + 1) / 2 * field.side - 0.5) * 2**_SHIFT).astype(np.int32)
    half = len(fixed) // 2
    for part, thick in ((fixed[: half + 1], width), (fixed[half:], width * 0.65)):
        cv2.polylines(base, [part[:, None]], False, colour, max(1, round(thick)), cv2.LINE_AA, _SHIFT)


def _disc(
    base: NDArray[np.uint8], field: Field, disc: tuple[float, float], colour: Canvas, rng: np.random.Generator
) -> None:
    """The optic disc: a pale oval with a paler cup."""
    import cv2

    size = rng.uniform(0.125, 0.17)
    pale = colour + (np.array([255, 225, 150], np.float32) - colour) * np.float32(rng.uniform(0.55, 0.8))
    for grow, mix in ((1.0, 0.85), (0.5, 1.0)):
        tone = tuple(float(value) for value in np.clip(pale * mix * (1.06 if grow < 1 else 1), 0, 255))
        axes = (field.length(size * grow * 0.9), field.length(size * grow))
        cv2.ellipse(base, field.at(*disc), axes, 0, 0, 360, tone, -1, cv2.LINE_AA, _SHIFT)


def _lesions(
    base: NDArray[np.uint8],
    field: Field,
    severity: float,
    disc: tuple[float, float],
    macula: tuple[float, float],
    colour: Canvas,
    rng: np.random.Generator,
) -> None:
    """Lesions in the order in which the disease brings them: dots, blots and exudates, wool spots, new vessels."""
    import cv2

    def dot(x: float, y: float, size: float, tone: Canvas) -> None:
        shade = tuple(float(value) for value in np.clip(tone, 0, 255))
        cv2.circle(base, field.at(x, y), field.length(size), shade, -1, cv2.LINE_AA, _SHIFT)

    def place() -> tuple[float, float]:
        angle, far = rng.uniform(0, 2 * np.pi), 0.85 * np.sqrt(rng.uniform(0.01, 1))
        return far * np.cos(angle), far * np.sin(angle)

    red = colour * np.array([0.5, 0.2, 0.25], np.float32)
    yellow = np.array([250, 225, 120], np.float32) * np.float32(0.97)
    for _ in range(rng.poisson(0.3 + 7 * min(severity, 3))):  # microaneurysms
        dot(*place(), rng.uniform(0.016, 0.032), red)
    for _ in range(rng.poisson(5 * max(0.0, severity - 1.2))):  # haemorrhages
        x, y = place()
        dot(x, y, rng.uniform(0.035, 0.075), red)
        dot(x + rng.normal(0, 0.03), y + rng.normal(0, 0.03), rng.uniform(0.025, 0.055), red)
    for _ in range(rng.poisson(1.6 * max(0.0, severity - 1.2))):  # clusters of hard exudates near the macula
        x, y = macula[0] + rng.normal(0, 0.25), macula[1] + rng.normal(0, 0.25)
        for _ in range(int(rng.integers(4, 11))):
            dot(x + rng.normal(0, 0.07), y + rng.normal(0, 0.07), rng.uniform(0.018, 0.036), yellow)
    for _ in range(rng.poisson(1.5 * max(0.0, severity - 2.3))):  # cotton-wool spots
        x, y = place()
        tone = colour + (np.array([245, 235, 205], np.float32) - colour) * np.float32(0.6)
        dot(x, y, rng.uniform(0.055, 0.095), tone)
    for _ in range(rng.poisson(4 * max(0.0, severity - 3.2))):  # new vessels: fine curls at the disc and elsewhere
        x, y = disc if rng.random() < 0.5 else place()
        turn = rng.uniform(0, 6.3) + np.cumsum(rng.normal(0.5, 0.5, 10))
        curl = np.cumsum(np.stack([np.cos(turn), np.sin(turn)]) * 0.045, axis=1)
        dark = tuple(float(value) for value in red)
        _line(base, field, x + curl[0], y + curl[1], field.side / 90, dark)
    if severity > 3.4 and rng.random() < 0.45:  # a pre-retinal bleed
        x, y = place()
        size = rng.uniform(0.12, 0.22)
        axes = (field.length(size), field.length(size * 0.55))
        shade = tuple(float(value) for value in red)
        cv2.ellipse(base, field.at(x, y), axes, float(rng.uniform(-20, 20)), 0, 180, shade, -1, cv2.LINE_AA, _SHIFT)
