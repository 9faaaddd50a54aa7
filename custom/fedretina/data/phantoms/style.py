"""What makes one hospital's pictures differ from another's: its camera, its scanner, its stethoscope."""

from __future__ import annotations

from typing import NamedTuple

from fedretina.seeds import generator
from fedretina.settings.images import Modality


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


class StethoscopeStyle(NamedTuple):
    """The electronic stethoscope of a clinic.

    Attributes:
        pulse: Usual beats a minute.
        cut: Frequency above which it hears little, Hz.
        noise: Loudness of the room in parts of the first heart sound's.
        hum: Loudness of the mains in the same parts.
        mains: Its frequency, Hz.
        clicks: Knocks and rubs a recording, on average.
    """

    pulse: float = 72.0
    cut: float = 500.0
    noise: float = 0.03
    hum: float = 0.0
    mains: float = 50.0
    clicks: float = 0.5


class WearerStyle(NamedTuple):
    """A wearer of an accelerometer, who is a client of their own.

    Attributes:
        tilt: How the sensor sits on the wrist: turns about its three axes, degrees.
        pace: Cadence in parts of the usual one.
        vigour: Size of movements in parts of the usual.
        noise: Standard deviation of the sensor's noise and of tremor, m/s2.
    """

    tilt: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pace: float = 1.0
    vigour: float = 1.0
    noise: float = 0.4


Style = FundusStyle | OctStyle | SkinStyle | StethoscopeStyle | WearerStyle


def drawn_style(modality: Modality, seed: tuple[int | str, ...]) -> Style:
    """A camera, scanner, stethoscope or wearer that no preset describes, drawn from a seed."""
    rng = generator(*seed, "style", modality)
    if modality == "dermoscopy":
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
    if modality == "heart_sound":
        return StethoscopeStyle(
            pulse=rng.uniform(62, 88),
            cut=float(rng.choice([250.0, 500.0, 900.0])),
            noise=rng.uniform(0.01, 0.08),
            hum=float(rng.choice([0.0, 0.02, 0.05])),
            mains=float(rng.choice([50.0, 60.0])),
            clicks=rng.uniform(0, 2),
        )
    if modality == "activity":
        across, along, about = (float(rng.uniform(-25, 25)) for _ in range(3))
        return WearerStyle(
            (across, along, about), rng.uniform(0.85, 1.15), rng.uniform(0.7, 1.3), rng.uniform(0.2, 0.7)
        )
    if modality == "oct":
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
