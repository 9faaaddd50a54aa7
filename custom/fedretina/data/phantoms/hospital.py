"""Phantom hospitals: synthetic pictures for every site that points to no data of its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.oct import DISEASES
from fedretina.data.phantoms.signals import ACTIVITIES, HEARTS
from fedretina.data.phantoms.skin import LESIONS
from fedretina.data.phantoms.style import PRESETS, Style, drawn_style
from fedretina.data.scheme_presets import preset
from fedretina.errors import DataError
from fedretina.seeds import derive_seed, generator
from fedretina.settings.images import SIGNALS, Modality
from fedretina.settings.scheme import GradingScheme

# What phantoms can show, where a class is more than a degree; neighbours are those that a grader mistakes.
SHOWN: Mapping[Modality, tuple[str, ...]] = MappingProxyType(
    {"oct": DISEASES, "dermoscopy": LESIONS, "heart_sound": HEARTS, "activity": ACTIVITIES}
)

# Raised whenever the pixels or labels of any phantom change.
PHANTOM_VERSION = 2


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

    def file_name(self, split: str, modality: Modality = "fundus") -> str:
        """Name of the file."""
        eye = f"-{'left' if self.left else 'right'}" if modality in ("fundus", "oct") else ""
        return f"{self.patient_name(split)}{eye}.{'wav' if modality in SIGNALS else 'png'}"


class PhantomHospital(NamedTuple):
    """A synthetic hospital.

    Attributes:
        modality: What it takes.
        scheme: Its grades.
        sizes: Images in train, val and test.
        style: Its camera, scanner or stethoscope.
        mix: Share of each grade among its labels; sums to 1.
        label_noise: Share of images whose label is a neighbour of the grade that they show.
        both_eyes: Share of patients who have a picture of each eye; 0 where pictures are not of eyes.
    """

    modality: Modality
    scheme: GradingScheme
    sizes: tuple[int, int, int]
    style: Style
    mix: tuple[float, ...]
    label_noise: float
    both_eyes: float = 0.5

    def cases(self, split: int, seed: tuple[int | str, ...]) -> tuple[Case, ...]:
        """The pictures of a split, patient by patient.

        The labels follow the mix exactly, and each grade that fits has at least one image. The eyes of a patient
        have equal or close grades, as they do in life.

        Args:
            split: 0 train, 1 val, 2 test.
            seed: Of the draws.
        """
        rng = generator(*seed, "cases")
        labels = np.repeat(np.arange(self.scheme.num_classes), self._counts(self.sizes[split]))
        order = self._order()
        place = {label: at for at, label in enumerate(order)}
        rank = np.array([place.get(label, rng.uniform(0, len(order))) for label in labels.tolist()])
        labels = labels[np.argsort(rank + rng.normal(0, 0.7, len(labels)), kind="stable")]
        patients: list[list[int]] = []
        queue = labels.tolist()
        while queue:
            eyes = 2 if rng.random() < self.both_eyes else 1
            patients.append([queue.pop(0) for _ in range(min(eyes, len(queue)))])
        found = []
        for number, at in enumerate(rng.permutation(len(patients))):
            first = bool(rng.random() < 0.5)
            for eye, label in enumerate(patients[at]):
                truth = self._mistaken(label, order, rng)
                found.append(Case(label, truth, number, first if eye == 0 else not first))
        return tuple(found)

    def _counts(self, size: int) -> NDArray[np.int64]:
        exact = np.array(self.mix) * size
        counts = np.floor(exact).astype(np.int64)
        if size >= len(self.mix):
            counts = np.maximum(counts, 1)
        while counts.sum() < size:
            counts[np.argmax(exact - counts)] += 1
        while counts.sum() > size:
            counts[np.argmax(counts - exact - 1e9 * (counts <= 1) * (size >= len(self.mix)))] -= 1
        return np.asarray(counts, dtype=np.int64)

    def _order(self) -> list[int]:
        """Classes such that a grader mistakes neighbours for each other; the ungradable one has none."""
        if self.modality in SHOWN:
            shown = SHOWN[self.modality]
            return sorted(range(self.scheme.num_classes), key=lambda label: shown.index(self.diseases()[label]))
        return [label for label in range(self.scheme.num_classes) if label != self.scheme.ungradable_class]

    def _mistaken(self, label: int, order: list[int], rng: np.random.Generator) -> int:
        draw, side = rng.random(), rng.random() < 0.5
        if draw >= self.label_noise or label not in order or len(order) < 2:
            return label
        at = order.index(label)
        beside = [order[k] for k in (at - 1, at + 1) if 0 <= k < len(order)]
        return beside[0] if side else beside[-1]

    def diseases(self) -> tuple[str, ...]:
        """The disease, or whatever else there is to see or hear, that each class shows where it is no degree.

        Raises:
            DataError: A grade is called nothing that phantoms can draw.
        """
        found = []
        shown = SHOWN[self.modality]
        for grade in self.scheme.grades:
            spellings = [grade, *(raw for raw, name in self.scheme.labels.items() if name == grade)]
            known = [word.casefold() for word in spellings if word.casefold() in shown]
            if not known:
                raise DataError(f"phantom scans cannot show {grade!r}: name the grade one of {list(shown)}.")
            found.append(known[0])
        return tuple(found)


def phantom_hospital(
    site: str, images: int = 160, scheme: GradingScheme | None = None, modality: Modality = "fundus"
) -> PhantomHospital:
    """The phantom hospital of a site.

    site-1 to site-5 are modelled on the five sites of FedUAA (APTOS, Messidor, DDR, EyePACS, IDRiD), for OCT site-1 to
    site-4 on the four clients of the OCT paper: their grades, their true mix of grades, their camera, and roughly who
    is small. Dermoscopy has four centres of Fed-ISIC2019, heart sounds the six databases of PhysioNet/CinC 2016,
    activity eight wearers. Any other name gets one of them by a hash, with a camera of its own.

    Args:
        site: Name of the site.
        images: Training images of an average site.
        scheme: Grades to use instead of the preset's; with another number of them, all are equally common.
        modality: What it takes.

    Raises:
        DataError: The scheme names a class that no phantom can show.
    """
    presets = PRESETS[modality]
    known = {f"site-{number + 1}": number for number in range(len(presets))}
    chosen = presets[known.get(site, derive_seed("phantom hospital", site) % len(presets))]
    usual = preset(chosen.scheme)
    grades = usual if scheme is None else scheme
    same = grades.num_classes == usual.num_classes
    total = sum(chosen.counts)
    mix = tuple(count / total for count in chosen.counts) if same else (1 / grades.num_classes,) * grades.num_classes
    train = max(2 * grades.num_classes, round(images * chosen.share))
    held = max(2 * grades.num_classes, round(train * 0.25))
    style = (chosen.style if site in known else None) or drawn_style(modality, (site,))
    hospital = PhantomHospital(modality, grades, (train, held, round(held * 1.5)), style, mix, chosen.label_noise)
    if modality not in ("fundus", "oct"):
        hospital = hospital._replace(both_eyes=0.0)
    if modality in SHOWN:
        hospital.diseases()
    return hospital
