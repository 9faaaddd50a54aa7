"""The hospitals that phantoms are modelled on: the sites of FedUAA, of the OCT paper, and of FedEE's three tasks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from fedretina.data.phantoms.style import FundusStyle, OctStyle, SkinStyle, StethoscopeStyle, Style
from fedretina.settings.images import Modality


class Preset(NamedTuple):
    """A hospital as published.

    Attributes:
        scheme: Its grading scheme, a preset of `scheme.preset`.
        share: Training images in parts of the average hospital's; nearer to each other than the published sets', so
            that the small hospital is small and not empty.
        counts: Images a grade, as published.
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
