"""What phantoms of a modality are: the hospitals that they are modelled on, what they show, and how one is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedretina.data.phantoms.canvas import Canvas
    from fedretina.data.phantoms.hospital import PhantomHospital

SPREAD = 0.3  # of the severity around a grade, so that neighbouring grades overlap as they do between doctors


class Case(NamedTuple):
    """One picture to draw.

    Attributes:
        label: The class that the hospital's grader gave.
        truth: The class that the picture shows; nothing that trains sees it.
        patient: Number of the patient within the split.
        left: Whether it is the left eye.
    """

    label: int
    truth: int
    patient: int
    left: bool

    def patient_name(self, split: str) -> str:
        """The patient's name; no two splits share one."""
        return f"phantom-{split}-{self.patient:05d}"


class Preset(NamedTuple):
    """A hospital as published.

    Attributes:
        scheme: Its grading scheme, a name of `scheme_presets`.
        share: Training images in parts of the average hospital's; nearer to each other than the published sets', so
            that the small hospital is small and not empty.
        counts: Images per grade, as published.
        style: Its camera, scanner or whatever else makes its files differ from another hospital's; None draws one from
            the site's name.
        label_noise: Share of its images that its graders put into a neighbouring grade.
    """

    scheme: str
    share: float
    counts: tuple[int, ...]
    style: Any
    label_noise: float


@dataclass(frozen=True, kw_only=True)
class PhantomKind:
    """The phantoms of a modality; pictures have `picture`, signals `wave`.

    Attributes:
        presets: The hospitals that site-1, site-2 and so on are modelled on.
        drawn_style: A style that no preset describes, drawn from a generator.
        shown: What phantoms can show, where a class is more than a degree; neighbours are those that a grader
            mistakes. Empty where classes are degrees of one disease.
        mark: What stands for the modality in a phantom hospital's fingerprint; its name where None.
        both_eyes: Share of patients who have a picture of each eye; 0 where pictures are not of eyes.
        picture: Draws a case on a canvas: (hospital, case, canvas, person, drift, rng) to uint8 [S, S, 3]. `person` is
            a generator that starts alike for both eyes of a patient, `drift` how far the disease has gone, in
            deviations.
        wave: Draws a case: (hospital, case, rng, settings) to samples per second and int16 or float32 [n] or [n, axes].
    """

    presets: tuple[Preset, ...]
    drawn_style: Callable[[np.random.Generator], Any]
    shown: tuple[str, ...] = ()
    mark: str | None = None
    both_eyes: float = 0.0
    picture: (
        Callable[[PhantomHospital, Case, Canvas, np.random.Generator, float, np.random.Generator], NDArray[np.uint8]]
        | None
    ) = None
    wave: (
        Callable[[PhantomHospital, Case, np.random.Generator, Any], tuple[int, NDArray[np.int16 | np.float32]]] | None
    ) = None
