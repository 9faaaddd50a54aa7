"""What makes one hospital's pictures differ from another's: its camera, its scanner, its stethoscope."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
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
        hair: Hairs per picture, on average.
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
        pulse: Usual beats per minute.
        cut: Frequency above which it hears little, Hz.
        noise: Loudness of the room in parts of the first heart sound's.
        hum: Loudness of the mains in the same parts.
        mains: Its frequency, Hz.
        clicks: Knocks and rubs per recording, on average.
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


class Preset(NamedTuple):
    """A hospital as published.

    Attributes:
        scheme: Its grading scheme, a preset of `scheme.preset`.
        share: Training images in parts of the average hospital's; nearer to each other than the published sets', so
            that the small hospital is small and not empty.
        counts: Images per grade, as published.
        style: Its camera or scanner; None draws one from the site's name.
        label_noise: Share of its images that its graders put into a neighbouring grade.
    """

    scheme: str
    share: float
    counts: tuple[int, ...]
    style: Style | None
    label_noise: float


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
# Heart sounds: the recordings of PhysioNet/CinC 2016's six databases, normal and abnormal, as the challenge lists them.
HEART_SOUND = (
    Preset("heart2", 1.0, (117, 292), StethoscopeStyle(74, 500, 0.03, 0.0, 60, 0.6), 0.04),
    Preset("heart2", 1.1, (386, 104), StethoscopeStyle(70, 250, 0.05, 0.0, 50, 1.0), 0.06),
    Preset("heart2", 0.3, (7, 24), StethoscopeStyle(76, 700, 0.02, 0.02, 50, 0.3), 0.02),
    Preset("heart2", 0.4, (27, 28), StethoscopeStyle(80, 600, 0.04, 0.03, 50, 1.0), 0.04),
    Preset("heart2", 1.6, (1958, 183), StethoscopeStyle(72, 800, 0.06, 0.01, 50, 1.5), 0.03),
    Preset("heart2", 0.5, (80, 34), StethoscopeStyle(68, 900, 0.08, 0.0, 50, 0.5), 0.05),
)
# Activity: eight wearers, whose activities last about as long as in PAMAP2's protocol, minutes over all its subjects.
ACTIVITY = tuple(Preset("activity8", 1.0, (32, 31, 32, 40, 20, 17, 29, 40), None, 0.0) for _ in range(8))
PRESETS: Mapping[Modality, tuple[Preset, ...]] = MappingProxyType(
    {"fundus": FUNDUS, "oct": OCT, "dermoscopy": DERMOSCOPY, "heart_sound": HEART_SOUND, "activity": ACTIVITY}
)
