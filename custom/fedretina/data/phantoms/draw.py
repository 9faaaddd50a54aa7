"""From cases to pictures and signals: what a class shows, how severe it is, and the drawing of a modality."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.phantoms.canvas import Canvas
from fedretina.data.phantoms.fundus import draw_fundus
from fedretina.data.phantoms.heart import RATE, draw_heart
from fedretina.data.phantoms.hospital import SHOWN, Case, PhantomHospital
from fedretina.data.phantoms.mark import stamp
from fedretina.data.phantoms.motion import draw_motion
from fedretina.data.phantoms.oct import draw_oct
from fedretina.data.phantoms.skin import draw_skin
from fedretina.data.phantoms.style import FundusStyle, OctStyle, SkinStyle, StethoscopeStyle, WearerStyle
from fedretina.errors import DataError
from fedretina.seeds import generator
from fedretina.settings.images import ActivitySettings, HeartSoundSettings, ImageSettings
from fedretina.settings.scheme import GradingScheme

_SPREAD = 0.3  # of the severity around a grade, so that neighbouring grades overlap as they do between doctors
_ICDR = tuple(str(grade) for grade in range(5))


def phantom_samples(
    hospital: PhantomHospital, cases: Sequence[Case], settings: ImageSettings, seed: tuple[int | str, ...]
) -> torch.Tensor:
    """Draw the samples of cases as a network takes them: uint8 [n, *settings.shape].

    Pictures are drawn at their size, without the transforms of files; of signals the transforms are part.
    """
    samples = np.empty((len(cases), *settings.shape), np.uint8)
    if isinstance(settings, HeartSoundSettings):
        from fedretina.data.heart_sound_transforms import spectrogram_picture

        for number, (rate, wave) in enumerate(draw_waves(hospital, cases, seed)):
            samples[number] = spectrogram_picture(wave.astype(np.float64), rate, settings)
    elif isinstance(settings, ActivitySettings):
        from fedretina.data.activity_transforms import window_bytes

        waves = draw_waves(hospital, cases, seed, settings.length, settings.rate)
        for number, (_, wave) in enumerate(waves):
            samples[number] = window_bytes(wave.astype(np.float64), settings)
    else:
        return phantom_images(hospital, cases, settings.image_size, seed)
    return torch.from_numpy(samples)


def draw_waves(
    hospital: PhantomHospital,
    cases: Sequence[Case],
    seed: tuple[int | str, ...],
    length: int = 1000,
    rate: int = 100,
) -> Iterator[tuple[int, NDArray[np.generic]]]:
    """Draw the signals of cases one by one.

    Args:
        hospital: Whose.
        cases: What they hold.
        seed: What they are for.
        length: Samples of a window of activity.
        rate: Samples of activity a second.

    Returns:
        Samples a second, and int16 [n] of a heart, or float32 [length, 3] of a wrist.
    """
    shown = hospital.diseases()
    for case in cases:
        rng = generator(*seed, "signal", case.patient)
        if isinstance(hospital.style, StethoscopeStyle):
            amount = float(np.clip(0.55 + 0.25 * rng.normal(), 0.05, 1))
            yield RATE, draw_heart(hospital.style, shown[case.truth], amount, rng)
        elif isinstance(hospital.style, WearerStyle):
            yield rate, draw_motion(hospital.style, shown[case.truth], rng, length, rate)


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
    diseases = hospital.diseases() if hospital.modality in SHOWN else ()
    grades = _icdr_grades(hospital.scheme)
    for case in cases:
        person = generator(*seed, "patient", case.patient)
        rng = generator(*seed, "eye", case.patient, "left" if case.left else "right")
        # The eyes of a patient share half of the variance of how far the disease has gone.
        drift = (person.normal() + rng.normal()) / 2**0.5
        if isinstance(hospital.style, OctStyle):
            amount = float(np.clip(0.62 + 0.24 * drift, 0.12, 1))
            image = draw_oct(canvas, hospital.style, person, case.left, diseases[case.truth], amount, rng)
        elif isinstance(hospital.style, SkinStyle):
            plain = float(np.clip(0.6 + 0.25 * drift, 0, 1))
            image = draw_skin(canvas, hospital.style, diseases[case.truth], plain, rng)
        elif isinstance(hospital.style, FundusStyle):
            bad = case.truth == hospital.scheme.ungradable_class
            grade = rng.uniform(0, 4) if bad else float(rng.choice(grades[case.truth]))
            severity = float(np.clip(grade + _SPREAD * drift, 0, 4.5))
            image = draw_fundus(canvas, hospital.style, person, case.left, severity, bad, rng)
        else:
            raise DataError(f"phantoms of {hospital.modality} are signals and no pictures: draw waves of them.")
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
