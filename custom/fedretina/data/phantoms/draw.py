"""From cases to pictures: what a class shows, how severe it is, and the drawing of one hospital's modality."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.phantoms.canvas import Canvas
from fedretina.data.phantoms.fundus import draw_fundus
from fedretina.data.phantoms.hospital import Case, PhantomHospital
from fedretina.data.phantoms.mark import stamp
from fedretina.data.phantoms.oct import draw_oct
from fedretina.data.phantoms.style import OctStyle
from fedretina.data.scheme import GradingScheme
from fedretina.seeds import generator

_SPREAD = 0.3  # of the severity around a grade, so that neighbouring grades overlap as they do between doctors
_ICDR = tuple(str(grade) for grade in range(5))


def phantom_images(
    hospital: PhantomHospital, cases: Sequence[Case], size: int, seed: tuple[int | str, ...]
) -> torch.Tensor:
    """Draw the pictures of cases.

    A picture depends on the hospital, the seed and its case alone, not on how many others are drawn.

    Args:
        hospital: Whose pictures.
        cases: What they show.
        size: Side S in pixels, 32 or more.
        seed: What the pictures are for.

    Returns:
        uint8 [n, 3, S, S], RGB.
    """
    images = np.empty((len(cases), 3, size, size), np.uint8)
    for number, image in enumerate(draw_cases(hospital, cases, size, seed)):
        images[number] = image.transpose(2, 0, 1)
    return torch.from_numpy(images)


def draw_cases(
    hospital: PhantomHospital, cases: Sequence[Case], size: int, seed: tuple[int | str, ...]
) -> Iterator[NDArray[np.uint8]]:
    """Draw the pictures of cases one by one, uint8 [S, S, 3]; see `phantom_images`."""
    canvas = Canvas(size)
    diseases = hospital.diseases() if hospital.modality == "oct" else ()
    grades = _icdr_grades(hospital.scheme)
    for case in cases:
        person = generator(*seed, "patient", case.patient)
        rng = generator(*seed, "eye", case.patient, "left" if case.left else "right")
        # The eyes of a patient share half of the variance of how far the disease has gone.
        drift = (person.normal() + rng.normal()) / 2**0.5
        if isinstance(hospital.style, OctStyle):
            amount = float(np.clip(0.62 + 0.24 * drift, 0.12, 1))
            image = draw_oct(canvas, hospital.style, person, case.left, diseases[case.truth], amount, rng)
        else:
            bad = case.truth == hospital.scheme.ungradable_class
            grade = rng.uniform(0, 4) if bad else float(rng.choice(grades[case.truth]))
            severity = float(np.clip(grade + _SPREAD * drift, 0, 4.5))
            image = draw_fundus(canvas, hospital.style, person, case.left, severity, bad, rng)
        stamp(image)
        yield image


def cases_of(labels: Sequence[int] | NDArray[np.int64]) -> tuple[Case, ...]:
    """Cases of given classes: each another patient's right eye, and no grader mistaken."""
    return tuple(Case(int(label), int(label), number, False) for number, label in enumerate(labels))


def _icdr_grades(scheme: GradingScheme) -> list[tuple[float, ...]]:
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
