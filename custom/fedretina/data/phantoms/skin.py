"""How a phantom dermoscopic picture is drawn: skin, a lesion of one of eight kinds, hairs, and the dermatoscope."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.canvas import Canvas, Plane, soften
from fedretina.data.phantoms.kind import Case, PhantomKind, Preset

if TYPE_CHECKING:
    from fedretina.data.phantoms.hospital import PhantomHospital

_Colour = tuple[float, float, float]


class _Look(NamedTuple):
    """What a kind of lesion looks like.

    Attributes:
        colour: RGB, 0 to 255.
        size: Its radius in units.
        ragged: How irregular its border is.
        soft: Width of its border in units.
        second: Another colour, in patches; None for none.
        patches: How much of it that colour takes, 0 to 1.
        network: Depth of the net of pigment, 0 to 1.
        dots: How many dots or clods.
        dot: Their colour.
        centre: Colour of a scar or plug in the middle; None for none.
    """

    colour: _Colour
    size: float
    ragged: float
    soft: float
    second: _Colour | None = None
    patches: float = 0.0
    network: float = 0.0
    dots: int = 0
    dot: _Colour = (0, 0, 0)
    centre: _Colour | None = None


# Neighbours are those that doctors take for each other.
_LOOKS: Mapping[str, _Look] = MappingProxyType(
    {
        "mel": _Look((92, 58, 48), 0.5, 0.24, 0.04, (52, 52, 74), 0.45, 0.15, 10, (40, 32, 34)),
        "nv": _Look((134, 88, 66), 0.38, 0.05, 0.06, None, 0, 0.35),
        "bkl": _Look((150, 116, 84), 0.46, 0.1, 0.015, (176, 142, 108), 0.4, 0, 26, (226, 204, 168)),
        "df": _Look((172, 116, 98), 0.32, 0.04, 0.14, None, 0, 0.15, 0, (0, 0, 0), (236, 214, 206)),
        "vasc": _Look((150, 34, 54), 0.34, 0.08, 0.02, (88, 22, 62), 0.5),
        "bcc": _Look((206, 132, 132), 0.44, 0.1, 0.1, None, 0, 0, 12, (92, 88, 116)),
        "scc": _Look((196, 104, 98), 0.5, 0.16, 0.07, None, 0, 0, 8, (128, 34, 38), (244, 232, 198)),
        "ak": _Look((206, 126, 112), 0.6, 0.12, 0.25, (236, 216, 200), 0.35),
    }
)
LESIONS = tuple(_LOOKS)


def draw_skin(
    canvas: Canvas, style: SkinStyle, lesion: str, amount: float, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """One dermoscopic picture.

    Args:
        canvas: What to draw on; its size is the picture's.
        style: The clinic's dermatoscope.
        lesion: One of `LESIONS`.
        amount: How plain it is, 0 to 1.
        rng: Of this picture.

    Returns:
        uint8 [S, S, 3], RGB.
    """
    import cv2

    look = _LOOKS[lesion]
    tone = np.exp(rng.normal(0, 0.05 + 0.08 * style.spread)) * np.exp(rng.normal(0, 0.02, 3))
    picture = np.empty((canvas.side, canvas.side, 3), np.float32)
    picture[:] = np.array(style.skin) * tone
    picture += (5 * canvas.smooth_noise(rng, 14) + 3 * canvas.smooth_noise(rng, 40))[..., None]
    x, y = rng.normal(0, 0.09, 2)
    inside, far = _shape(canvas, look, float(x), float(y), style.zoom, rng)
    depth = 0.6 + 0.4 * amount
    _paint(picture, inside * np.float32(depth), look.colour)
    if look.second is not None:
        patch = np.clip((canvas.smooth_noise(rng, 7) + np.float32(2 * look.patches - 1)) * 2 + np.float32(0.5), 0, 1)
        _paint(picture, inside * patch * np.float32(depth), look.second)
    if look.network:
        angle, mesh = rng.uniform(0, np.pi), rng.uniform(42, 58)
        net = np.zeros_like(inside)
        for turn in (0, np.pi / 3, 2 * np.pi / 3):
            net += np.cos(mesh * (canvas.x * np.cos(angle + turn) + canvas.y * np.sin(angle + turn)))
        picture *= 1 - (inside * np.float32(look.network * depth) * np.clip(0.3 - net / 3, 0, 1))[..., None]
    if look.dots:
        where = rng.uniform(0, 2 * np.pi, look.dots), look.size * style.zoom * np.sqrt(rng.uniform(0, 0.8, look.dots))
        points = np.stack([x + where[1] * np.cos(where[0]), y + where[1] * np.sin(where[0])], 1)
        mask = canvas.empty()
        canvas.ellipses(mask, points, np.repeat(rng.uniform(0.018, 0.05, look.dots)[:, None], 2, 1))
        _paint(picture, soften(mask, 0.7) * np.float32(depth), look.dot)
    if look.centre is not None:
        _paint(picture, np.clip(1.4 - far * np.float32(3.2), 0, 1) * np.float32(0.9 * depth), look.centre)
    _hairs(canvas, picture, style, rng)

    blur = style.blur * canvas.side * rng.lognormal(0, 0.3)
    if blur >= 0.3:
        picture = np.asarray(cv2.GaussianBlur(picture, (0, 0), blur), dtype=np.float32)
    rim = np.sqrt(canvas.radius2)
    shade = 1 - np.float32(min(style.vignette, 0.4)) * np.clip(rim - 0.3, 0, 1) ** 2
    if style.vignette >= 0.5:
        shade = shade * np.clip((np.float32(1.12 + rng.normal(0, 0.04)) - rim) * 14, 0.04, 1)
    gain = rng.lognormal(0, 0.03 + 0.1 * style.spread)
    picture *= shade[..., None] * np.float32(gain) * np.array(style.light, np.float32)
    small = cv2.resize(picture, (canvas.size, canvas.size), interpolation=cv2.INTER_AREA)
    small = small + rng.standard_normal(small.shape, dtype=np.float32) * np.float32(style.noise)
    return np.asarray(np.clip(small, 0, 255), dtype=np.uint8)


def _shape(
    canvas: Canvas, look: _Look, x: float, y: float, zoom: float, rng: np.random.Generator
) -> tuple[Plane, Plane]:
    """How much each pixel is of the lesion, 0 to 1, and how far it is from its middle in parts of its radius."""
    dx, dy = canvas.x - np.float32(x), canvas.y - np.float32(y)
    turn, flat = rng.uniform(0, np.pi), rng.uniform(0.75, 1.0)
    along, across = dx * np.cos(turn) + dy * np.sin(turn), (dy * np.cos(turn) - dx * np.sin(turn)) / flat
    angle = np.arctan2(across, along)
    radius = np.full_like(angle, look.size * zoom * rng.lognormal(0, 0.15))
    for wave in range(2, 9):
        lobe = look.ragged * rng.normal(0, 1) / wave**0.7
        radius *= 1 + np.float32(lobe) * np.cos(wave * angle + np.float32(rng.uniform(0, 2 * np.pi)))
    far = np.sqrt(along**2 + across**2) / np.maximum(radius, 0.05)
    inside = 1 / (1 + np.exp(np.clip((far - 1) * np.float32(look.size / look.soft), -30, 30)))
    return np.asarray(inside, dtype=np.float32), np.asarray(far, dtype=np.float32)


def _paint(picture: NDArray[np.float32], weight: Plane, colour: _Colour) -> None:
    picture += weight[..., None] * (np.array(colour, np.float32) - picture)


def _hairs(canvas: Canvas, picture: NDArray[np.float32], style: SkinStyle, rng: np.random.Generator) -> None:
    count = int(rng.poisson(style.hair))
    if not count:
        return
    t = np.linspace(-1, 1, 12)
    mask = canvas.empty()
    for _ in range(count):
        middle, angle, bend = rng.uniform(-0.9, 0.9, 2), rng.uniform(0, 2 * np.pi), rng.normal(0, 0.2)
        long = rng.uniform(0.3, 1.2)
        path = np.stack([long * t, bend * t**2], 1)
        turned = path @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        canvas.lines(mask, [canvas.fixed(middle + turned)], 0.014, 230)
    _paint(picture, soften(mask, 0.4), (58, 44, 38))


class SkinStyle(NamedTuple):
    """The dermatoscope of a clinic, and the skin that it sees.

    Attributes:
        skin: Usual colour of the skin, RGB 0 to 255.
        light: Colour of its lamp, factors of red, green and blue.
        zoom: Size of lesions in the picture, 1 is usual.
        hair: Hairs a picture, on average.
        vignette: Fall of light towards the rim; from 0.5 on the tube's black rim shows.
        blur: In parts of the picture's side.
        noise: Standard deviation of the sensor's noise, grey levels.
        spread: How much the clinic's pictures differ among each other in colour and light, 0 to 1.
    """

    skin: tuple[float, float, float] = (222, 178, 158)
    light: tuple[float, float, float] = (1.0, 1.0, 1.0)
    zoom: float = 1.0
    hair: float = 3.0
    vignette: float = 0.2
    blur: float = 0.004
    noise: float = 3.0
    spread: float = 0.3


# FedEE, Table 2. Dermoscopy: shares of the diagnoses in four of Fed-ISIC2019's six centres (1, 2, 3 and 5 of FLamby),
# counted on samples of 1000, 1000, 800 and 349 of their pictures, with one picture for diagnoses that a sample lacks.
_LESIONS = (
    (2, 952, 1, 1, 27, 6, 13, 1),
    (189, 539, 60, 6, 161, 18, 23, 4),
    (114, 297, 99, 39, 174, 8, 1, 68),
    (51, 282, 3, 1, 7, 4, 2, 1),
)
_TUBES = (
    SkinStyle((226, 186, 176), (1.0, 0.98, 1.06), 0.9, 2.0, 0.15, 0.004, 3.0, 0.2),
    SkinStyle((214, 170, 146), (1.05, 1.0, 0.9), 1.0, 4.0, 0.3, 0.003, 2.5, 0.4),
    SkinStyle((228, 180, 164), (1.0, 0.95, 1.0), 1.25, 5.0, 0.6, 0.003, 2.0, 0.4),
    SkinStyle((205, 165, 130), (1.12, 1.0, 0.82), 1.05, 8.0, 0.1, 0.007, 4.5, 0.3),
)
DERMOSCOPY = tuple(
    Preset("isic8", share, counts, style, 0.04)
    for share, counts, style in zip((1.3, 1.2, 0.9, 0.4), _LESIONS, _TUBES, strict=True)
)


def _drawn_style(rng: np.random.Generator) -> SkinStyle:
    """A dermatoscope that no preset describes."""
    red = rng.uniform(175, 235)
    green = red * rng.uniform(0.68, 0.84)
    return SkinStyle(
        skin=(red, green, green * rng.uniform(0.75, 0.95)),
        light=(rng.uniform(0.9, 1.1), 1.0, rng.uniform(0.85, 1.15)),
        zoom=rng.uniform(0.8, 1.3),
        hair=float(rng.choice([1.0, 4.0, 8.0])),
        vignette=float(rng.choice([0.1, 0.25, 0.6])),
        blur=rng.uniform(0.002, 0.008),
        noise=rng.uniform(2, 5),
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
    plain = float(np.clip(0.6 + 0.25 * drift, 0, 1))
    return draw_skin(canvas, hospital.style, hospital.diseases()[case.truth], plain, rng)


PHANTOMS = PhantomKind(presets=DERMOSCOPY, drawn_style=_drawn_style, shown=LESIONS, picture=_picture)
