"""What a fundus camera makes of a retina: focus, light, field of view, sensor, compression; and what goes wrong."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.canvas import Canvas, Plane
from fedretina.data.phantoms.style import FundusStyle

_FAULTS = ("defocus", "dark", "haze", "lashes", "glare", "pupil")


def photograph(
    canvas: Canvas, retina: NDArray[np.float32], style: FundusStyle, ungradable: bool, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Take the picture.

    Args:
        canvas: What the retina was drawn on.
        retina: float32 [3, side, side], 0 to 255 and beyond.
        style: The camera.
        ungradable: Whether one to three faults spoil the picture.
        rng: Of this picture.

    Returns:
        uint8 [S, S, 3], RGB, black outside the field of view.
    """
    import cv2

    size = canvas.size
    faults = dict.fromkeys(_FAULTS, 0.0)
    if ungradable:
        for name in rng.choice(_FAULTS, int(rng.integers(1, 4)), replace=False):
            faults[str(name)] = rng.uniform(0.55, 1.0)
    elif rng.random() < style.trouble:
        faults[_FAULTS[int(rng.integers(len(_FAULTS)))]] = rng.uniform(0.1, 0.4)

    blur = style.haze * rng.lognormal(0, 0.3) + 0.035 * faults["defocus"] ** 1.5
    wide = round(size * style.squeeze)
    picture = np.zeros((3, size, size), np.float32)
    first = (size - wide) // 2
    for plane, source in zip(picture, retina, strict=True):
        sharp = cv2.GaussianBlur(source, (0, 0), blur * canvas.side) if blur * canvas.side >= 0.3 else source
        plane[:, first : first + wide] = cv2.resize(sharp, (wide, size), interpolation=cv2.INTER_AREA)

    axis = ((np.arange(size, dtype=np.float32) + 0.5) / size) * 2 - 1
    x: Plane = np.asarray(axis[None, :] / style.squeeze, dtype=np.float32)
    y: Plane = np.asarray(axis[:, None])
    far = np.sqrt(x * x + y * y)
    gain = style.gain * rng.lognormal(0, 0.04 + 0.16 * style.spread) * (1 - 0.78 * faults["dark"])
    _light(picture, x, y, far, faults, style, rng)
    picture *= np.float32(gain)
    picture += rng.standard_normal((size, size), dtype=np.float32) * np.float32(style.noise)
    radius = rng.uniform(0.955, 0.99)
    mask = _field(size, x, y, far, radius, style, rng)
    red, green, blue = np.clip(picture * mask + 2, 0, 255).astype(np.uint8)
    stored = cv2.imencode(".jpg", cv2.merge([blue, green, red]), [cv2.IMWRITE_JPEG_QUALITY, style.quality])[1]
    return np.asarray(cv2.imdecode(stored, cv2.IMREAD_COLOR_RGB), dtype=np.uint8)


def _light(
    picture: NDArray[np.float32],
    x: Plane,
    y: Plane,
    far: Plane,
    faults: dict[str, float],
    style: FundusStyle,
    rng: np.random.Generator,
) -> None:
    """Veils, shadows and reflections between the retina and the sensor."""
    import cv2

    def blob(cx: float, cy: float, wide: float) -> Plane:
        return np.asarray(np.exp(((x - np.float32(cx)) ** 2 + (y - np.float32(cy)) ** 2) * np.float32(-0.5 / wide**2)))

    pale = np.array([1.0, 0.85, 0.7] if rng.random() < 0.6 else [0.75, 0.95, 1.0], np.float32)[:, None, None]
    if rng.random() < style.glow:  # stray light from the pupil's edge
        angle = rng.uniform(0, 2 * np.pi)
        side = np.clip((x * np.cos(angle) + y * np.sin(angle)) * np.float32(1.4) - np.float32(0.5), 0, 1)
        crescent = side * np.exp((far - 1) / np.float32(rng.uniform(0.05, 0.14)))
        picture += crescent * (np.float32(rng.uniform(60, 170)) * pale)
    if faults["haze"]:
        level = faults["haze"]
        veil = np.float32(0.45) + np.float32(0.55) * blob(
            rng.uniform(-0.5, 0.5), rng.uniform(-0.5, 0.5), rng.uniform(0.4, 0.9)
        )
        share = veil * np.float32(0.85 * level)
        picture += share * (np.array([150, 128, 105], np.float32)[:, None, None] * pale - picture)
    if faults["pupil"]:
        shade = blob(rng.uniform(-0.6, 0.6), rng.uniform(-0.6, 0.6), rng.uniform(0.35, 0.6)) * np.float32(
            0.97 * faults["pupil"]
        )
        picture *= 1 - shade
    if faults["glare"]:
        angle, wide = rng.uniform(0, 2 * np.pi), rng.uniform(0.25, 0.5)
        spot = blob(0.75 * np.cos(angle), 0.75 * np.sin(angle), wide)
        picture += spot * (np.float32(260 * faults["glare"]) * pale)
    if faults["lashes"]:
        size = picture.shape[1]
        mask = np.zeros((size, size), np.uint8)
        edge = 1 if rng.random() < 0.7 else -1
        t = np.linspace(0, 1, 8)
        for start in rng.uniform(-0.9, 0.9, int(rng.integers(8, 20))):
            long = rng.uniform(0.3, 0.4 + 0.7 * faults["lashes"])
            lash = np.stack([start + rng.normal(0, 0.15) * t + rng.normal(0, 0.2) * t**2, edge * (1 - long * t)], 1)
            fixed = np.round((lash + 1) / 2 * size * 16).astype(np.int32)
            cv2.polylines(mask, [fixed], False, 255, max(1, round(size * 0.012)), cv2.LINE_AA, 4)
        soft = cv2.GaussianBlur(mask, (0, 0), size * 0.012).astype(np.float32) * np.float32(0.8 / 255)
        picture *= 1 - soft


def _field(
    size: int, x: Plane, y: Plane, far: Plane, radius: float, style: FundusStyle, rng: np.random.Generator
) -> Plane:
    """Weights of the field of view: a circle, at times cut above and below, with the camera's notch."""
    sharp = np.float32(size / 2)
    mask = np.clip((np.float32(radius) - far) * sharp + np.float32(0.5), 0, 1)
    if style.notch is not None:
        angle = np.radians(style.notch + rng.normal(0, 1))
        along = x * np.float32(np.cos(angle)) - y * np.float32(np.sin(angle))
        across = x * np.float32(np.sin(angle)) + y * np.float32(np.cos(angle))
        tooth = np.minimum(np.float32(0.035) - np.abs(across), np.float32(radius + 0.03) - along)
        tooth = np.minimum(tooth, along)
        mask = np.maximum(mask, np.clip(tooth * sharp + np.float32(0.5), 0, 1))
    if style.cut < 1:
        mask = mask * np.clip((np.float32(style.cut) - np.abs(y)) * sharp + np.float32(0.5), 0, 1)
    return np.asarray(mask, dtype=np.float32)
