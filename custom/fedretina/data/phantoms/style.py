"""What makes one hospital's pictures differ from another's: its camera or its OCT scanner."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fedretina.seeds import generator


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


Style = FundusStyle | OctStyle


def drawn_style(modality: Literal["fundus", "oct"], seed: tuple[int | str, ...]) -> Style:
    """A camera or scanner that no preset describes, drawn from a seed."""
    rng = generator(*seed, "style", modality)
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
