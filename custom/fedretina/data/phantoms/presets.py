"""The hospitals that phantoms are modelled on: the five sites of FedUAA and the four clients of the OCT paper."""

from __future__ import annotations

from typing import NamedTuple

from fedretina.data.phantoms.style import FundusStyle, OctStyle, Style


class Preset(NamedTuple):
    """A hospital as published.

    Attributes:
        scheme: Its grading scheme, a preset of `scheme.preset`.
        share: Training images in parts of the average hospital's; nearer to each other than the published sets', so
            that the small hospital is small and not empty.
        counts: Images a grade, as published.
        style: Its camera or scanner.
        label_noise: Share of its images that its graders put into a neighbouring grade.
    """

    scheme: str
    share: float
    counts: tuple[int, ...]
    style: Style
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
