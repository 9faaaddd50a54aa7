"""How a phantom fundus is drawn: retina and choroid, macula, optic disc, vessels, lesions, and then the camera."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.canvas import Canvas, Plane, soften
from fedretina.data.phantoms.fundus_structures import (
    Landmarks,
    Masks,
    draw_lesions,
    draw_lookalikes,
    draw_vessels,
    vessel_tree,
)
from fedretina.data.phantoms.kind import SPREAD, Case, PhantomKind, Preset
from fedretina.settings.scheme import GradingScheme

if TYPE_CHECKING:
    from fedretina.data.phantoms.hospital import PhantomHospital

# What blood takes of red, green and blue: most of green, as in the red-free pictures that graders use.
_BLOOD = (0.33, 0.63, 0.64)
_RIM, _CUP = (292, 200, 112), (315, 262, 182)  # red beyond what the film holds
_PIGMENT = np.array([0.75, 1.0, 0.95], np.float32)
_EXUDATE = (255, 226, 118)
_WOOL = (238, 216, 150)
_ICDR = tuple(str(grade) for grade in range(5))


class _Person(NamedTuple):
    """What both eyes of a patient share."""

    tint: NDArray[np.float32]
    disc_radius: float
    cup: float
    calibre: float
    tortuosity: float
    choroid: float
    macula: float
    sheen: float

    @classmethod
    def of(cls, rng: np.random.Generator, spread: float) -> _Person:
        pigment = rng.normal(0, 0.07 + 0.1 * spread)
        tint = np.exp(np.array([0.6, 1.0, 1.1]) * pigment + rng.normal(0, 0.03 + 0.05 * spread, 3) * (0.6, 1, 1.6))
        return cls(
            tint=tint.astype(np.float32),
            disc_radius=rng.uniform(0.12, 0.155),
            cup=rng.uniform(0.25, 0.62),
            calibre=rng.uniform(0.023, 0.031),
            tortuosity=rng.beta(1.5, 3),
            choroid=max(0.0, rng.normal(0.01, 0.045)),
            macula=rng.uniform(0.18, 0.42),
            sheen=max(0.0, rng.normal(0.0, 0.06)),
        )


def draw_fundus(
    canvas: Canvas,
    style: FundusStyle,
    person: np.random.Generator,
    left: bool,
    severity: float,
    ungradable: bool,
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    """One photograph.

    Args:
        canvas: What to draw on; its size is the picture's.
        style: The hospital's camera.
        person: A generator that starts alike for both eyes of a patient.
        left: Whether it is a left eye, whose disc lies on the left.
        severity: On the ICDR scale, 0 (none) to 4 (proliferative), with a spread.
        ungradable: Whether the picture is too poor to be graded.
        rng: Of this picture.

    Returns:
        uint8 [S, S, 3], RGB, black outside the field of view.
    """
    who = _Person.of(person, style.spread)
    eye = _landmarks(who, left, rng)
    image = _retina(canvas, style, who, eye, rng)
    _optic_disc(canvas, image, who, eye, rng)
    masks = Masks(canvas.empty(), canvas.empty(), canvas.empty(), canvas.empty())
    tree = vessel_tree(eye, who.calibre, who.tortuosity, rng)
    draw_vessels(canvas, masks.vessels, tree)
    draw_lookalikes(canvas, masks, eye, rng)
    draw_lesions(canvas, masks, eye, tree[0], severity, rng)
    if np.any(masks.wool):
        _blend(image, _WOOL, soften(masks.wool, canvas.pixels(0.022)), 0.62)
    blood = soften(masks.blood, max(0.5, canvas.pixels(0.005)))
    _bleed(image, np.maximum(blood, np.float32(0.9) * soften(masks.vessels, max(0.5, canvas.pixels(0.003)))))
    if np.any(masks.exudates):
        _blend(image, _EXUDATE, soften(masks.exudates, max(0.4, canvas.pixels(0.003))), 0.9)
    return photograph(canvas, image, style, ungradable, rng)


def _landmarks(who: _Person, left: bool, rng: np.random.Generator) -> Landmarks:
    nasal = -1 if left else 1
    fovea = (-nasal * rng.normal(0.12, 0.09), rng.normal(0.03, 0.06))
    apart = rng.uniform(0.62, 0.7)  # 15 to 16 degrees in a field of 45
    disc = (fovea[0] + nasal * apart, fovea[1] - rng.uniform(0.02, 0.12))
    return Landmarks(disc, who.disc_radius, fovea, nasal)


def _retina(
    canvas: Canvas, style: FundusStyle, who: _Person, eye: Landmarks, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Retina over choroid under the camera's light, float32 [3, side, side], RGB around 0 to 255."""
    slope = rng.normal(0, 0.05 + 0.12 * style.spread, 2)
    light = 1.06 - np.float32(style.vignette) * canvas.radius2
    light += np.float32(slope[0]) * canvas.x + np.float32(slope[1]) * canvas.y
    light += np.float32(0.03) * canvas.smooth_noise(rng, 6)
    light += np.float32(who.sheen + 0.05) * canvas.blob(*eye.disc, 0.34)
    macula = canvas.blob(*eye.fovea, 0.2, 0.18)
    if who.choroid > 0.01:
        light += np.float32(who.choroid) * (1 - macula) * _choroid(canvas, eye, rng)
    light += np.float32(0.012) * canvas.smooth_noise(rng, 48)
    colour = np.array(style.retina, np.float32) * who.tint
    # The macula's yellow pigment takes blue and green more than red.
    spot = np.float32(0.45) * macula + np.float32(0.55) * canvas.blob(*eye.fovea, 0.075)
    spot *= np.float32(who.macula)
    image = np.stack([(light * tone) * (1 - spot * taken) for tone, taken in zip(colour, _PIGMENT, strict=True)])
    if who.sheen > 0.05:  # young retinas reflect around the fovea and along the nerve fibres
        far = np.sqrt(np.square(canvas.x - eye.fovea[0]) + np.square((canvas.y - eye.fovea[1]) * 1.25))
        ring = np.exp(-np.square((far - np.float32(rng.uniform(0.18, 0.26))) / np.float32(0.05)))
        streaks = np.maximum(0, canvas.smooth_noise(rng, 18, 26) - np.float32(0.3))
        image += ring * streaks * np.float32(240 * who.sheen)
    return image


def _choroid(canvas: Canvas, eye: Landmarks, rng: np.random.Generator) -> Plane:
    """Larger vessels of the choroid: a net of lighter bands that run outwards, seen where pigment is scarce."""
    import cv2

    rays = cv2.resize(rng.standard_normal((40, 12), dtype=np.float32), (256, 256), interpolation=cv2.INTER_CUBIC)
    net = cv2.GaussianBlur(np.float32(0.6) - np.abs(rays), (0, 0), 1.5)
    centre = (canvas.pixels(1 + eye.fovea[0]), canvas.pixels(1 + eye.fovea[1]))
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP | cv2.WARP_FILL_OUTLIERS
    return np.asarray(cv2.warpPolar(net, (canvas.side, canvas.side), centre, canvas.pixels(2.2), flags))


def _optic_disc(
    canvas: Canvas, image: NDArray[np.float32], who: _Person, eye: Landmarks, rng: np.random.Generator
) -> None:
    """A pale oval, paler toward its cup on the temporal side, at times with a crescent of bare sclera."""
    (x, y), radius = eye.disc, eye.disc_radius
    wide = radius * rng.uniform(0.84, 0.97)
    edge = rng.uniform(4, 9)

    def oval(cx: float, cy: float, a: float, b: float, steep: float) -> Plane:
        far = np.sqrt(
            np.square((canvas.x - np.float32(cx)) / np.float32(a)) + np.square((canvas.y - cy) / np.float32(b))
        )
        return np.asarray(np.clip((1 - far) * np.float32(steep) + np.float32(0.5), 0, 1), dtype=np.float32)

    if rng.random() < 0.3:
        crescent = oval(x - eye.nasal * radius * 0.22, y, wide * 1.1, radius * 1.05, edge)
        _blend(image, _CUP, crescent, rng.uniform(0.12, 0.35))
    pallor = rng.uniform(0.55, 0.82)
    _blend(image, _RIM, oval(x, y, wide, radius, edge), pallor)
    cup = oval(x - eye.nasal * radius * 0.1, y, wide * who.cup, radius * who.cup, edge * 0.35)
    _blend(image, _CUP, cup, min(0.95, pallor + 0.15))


def _blend(image: NDArray[np.float32], colour: tuple[float, ...], weight: Plane, most: float) -> None:
    """Move the picture toward a colour where the weight is not zero."""
    rows, columns = (np.flatnonzero(np.any(weight, axis)) for axis in (1, 0))
    if not len(rows):
        return
    part = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    share = weight[part] * np.float32(most)
    for plane, tone in zip(image, colour, strict=True):
        plane[part] += share * (np.float32(tone) - plane[part])


def _bleed(image: NDArray[np.float32], weight: Plane) -> None:
    for channel, taken in enumerate(_BLOOD):
        image[channel] *= 1 - weight * np.float32(taken)


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


class FundusStyle(NamedTuple):
    """The fundus camera of a hospital.

    Attributes:
        retina: Usual colour of the retina, RGB 0 to 255.
        gain: Overall brightness.
        spread: How much the hospital's pictures differ among each other in colour and light, 0 to 1.
        squeeze: Width of the field of view over its height as stored; below 1 circles become upright ovals.
        cut: Share of the field's height that is kept; below 1 top and bottom are cut off.
        notch: Angle of the camera's mark at the rim in degrees, counter-clockwise from the right; None without.
        vignette: Fall of light towards the rim.
        glow: How often stray light shows at the rim, 0 to 1.
        haze: Blur in parts of the picture's side.
        noise: Standard deviation of the sensor's noise, grey levels.
        quality: Of the JPEG compression that the pictures went through, 1 to 100.
        trouble: How often a picture that can still be graded is hazy, dark or out of focus, 0 to 1.
    """

    retina: tuple[float, float, float]
    gain: float = 1.0
    spread: float = 0.3
    squeeze: float = 1.0
    cut: float = 1.0
    notch: float | None = None
    vignette: float = 0.3
    glow: float = 0.2
    haze: float = 0.003
    noise: float = 2.5
    quality: int = 88
    trouble: float = 0.1


# FedUAA, MICCAI 2023, Table 3 names the sites, their grades and devices; it prints no mix of grades. The counts are
# those of the sets' official lists of grades, all published splits together:
#   APTOS 2019: the training list of the challenge, 3662 images.
#   Messidor: Messidor-2 as graded for Krause et al. 2018, 1744 gradable images, 3 and 4 (75 + 35) merged. The paper's
#     1200 images are the first Messidor, whose own grades are other ones and not in those lists.
#   DDR: lists train and valid of its grading task as reused by later work, 12521 images; the sixth grade is what the
#     paper's total of 13673 leaves.
#   EyePACS: the training list of the Kaggle challenge, 35126 images ("DRR" in the paper).
#   IDRiD: official training (413) and test (103) lists.
# How often graders disagree is not published by site, so the noise is ours: least for Messidor-2, whose grades were
# adjudicated, most for EyePACS, where one doctor graded each image.
FUNDUS = (
    Preset(
        "icdr5",
        1.0,
        (1805, 370, 999, 193, 295),
        FundusStyle((196, 103, 34), 0.95, 0.5, 0.88, 0.98, 42.0, 0.34, 0.45, 0.0032, 1.5, 92, 0.1),
        0.04,
    ),
    Preset(
        "normal_3stages",
        0.7,
        (1017, 270, 347, 110),
        FundusStyle((186, 82, 36), 0.95, 0.25, 1.0, 0.97, None, 0.36, 0.1, 0.0026, 2.0, 95, 0.04),
        0.03,
    ),
    Preset(
        "icdr5_ungradable",
        1.5,
        (6265, 630, 4477, 236, 913, 1152),
        FundusStyle((192, 108, 66), 1.0, 0.75, 1.0, 1.0, None, 0.28, 0.3, 0.004, 3.0, 82, 0.15),
        0.04,
    ),
    Preset(
        "icdr5",
        1.5,
        (25810, 2443, 5292, 873, 708),
        FundusStyle((168, 98, 62), 0.95, 0.6, 1.0, 0.9, 35.0, 0.32, 0.3, 0.0045, 3.0, 75, 0.2),
        0.08,
    ),
    Preset(
        "icdr5",
        0.3,
        (168, 25, 168, 93, 62),
        FundusStyle((208, 104, 36), 1.0, 0.3, 1.0, 0.84, 25.0, 0.38, 0.2, 0.003, 1.5, 96, 0.05),
        0.04,
    ),
)


def _drawn_style(rng: np.random.Generator) -> FundusStyle:
    """A camera that no preset describes."""
    red = rng.uniform(150, 225)
    green = red * rng.uniform(0.38, 0.6)
    return FundusStyle(
        retina=(red, green, green * rng.uniform(0.25, 0.75)),
        gain=rng.uniform(0.85, 1.1),
        spread=rng.uniform(0.2, 0.6),
        squeeze=float(rng.choice([1.0, 1.0, 0.88])),
        cut=float(rng.choice([1.0, 0.93, 0.84])),
        notch=(None, 45.0, 20.0, -20.0)[int(rng.integers(4))],
        vignette=rng.uniform(0.2, 0.45),
        glow=rng.uniform(0, 0.4),
        haze=rng.uniform(0.002, 0.007),
        noise=rng.uniform(1.5, 4),
        quality=int(rng.integers(70, 95)),
        trouble=rng.uniform(0.05, 0.2),
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
    bad = case.truth == hospital.scheme.ungradable_class
    grade = rng.uniform(0, 4) if bad else float(rng.choice(icdr_grades(hospital.scheme)[case.truth]))
    severity = float(np.clip(grade + SPREAD * drift, 0, 4.5))
    return draw_fundus(canvas, hospital.style, person, case.left, severity, bad, rng)


def icdr_grades(scheme: GradingScheme) -> list[tuple[float, ...]]:
    """Grades of the ICDR scale that each class stands for: what its raw labels say, else spread evenly."""
    graded = [label for label in range(scheme.num_classes) if label != scheme.ungradable_class]
    if all(raw in scheme.labels for raw in _ICDR):
        meant = [
            tuple(float(raw) for raw in _ICDR if scheme.index(raw) == label) for label in range(scheme.num_classes)
        ]
        if all(meant[label] for label in graded):
            return meant
    even = {label: 4.0 * at / max(1, len(graded) - 1) for at, label in enumerate(graded)}
    return [(even.get(label, 0.0),) for label in range(scheme.num_classes)]


PHANTOMS = PhantomKind(presets=FUNDUS, drawn_style=_drawn_style, mark="", both_eyes=0.5, picture=_picture)
