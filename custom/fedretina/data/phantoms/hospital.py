"""Phantom hospitals: synthetic pictures for every site that points to no data of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.modalities import modality_named
from fedretina.data.phantoms.kind import Case, PhantomKind
from fedretina.errors import DataError
from fedretina.seeds import derive_seed, generator
from fedretina.settings.scheme import GradingScheme, preset

# Raised whenever the pixels or labels of any phantom change.
PHANTOM_VERSION = 2


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

    modality: str
    scheme: GradingScheme
    sizes: tuple[int, int, int]
    style: Any
    mix: tuple[float, ...]
    label_noise: float
    both_eyes: float = 0.5

    @property
    def kind(self) -> PhantomKind:
        """The phantoms of its modality."""
        return modality_named(self.modality).phantoms

    def file_name(self, case: Case, split: str) -> str:
        """Name of the file of a case."""
        eye = f"-{'left' if case.left else 'right'}" if self.kind.both_eyes else ""
        return f"{case.patient_name(split)}{eye}.{'png' if self.kind.wave is None else 'wav'}"

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
        shown = self.kind.shown
        if shown:
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
        shown = self.kind.shown
        for grade in self.scheme.grades:
            spellings = [grade, *(raw for raw, name in self.scheme.labels.items() if name == grade)]
            known = [word.casefold() for word in spellings if word.casefold() in shown]
            if not known:
                raise DataError(f"phantom scans cannot show {grade!r}: name the grade one of {list(shown)}.")
            found.append(known[0])
        return tuple(found)


def phantom_hospital(
    site: str, images: int = 160, scheme: GradingScheme | None = None, modality: str = "fundus"
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
    kind = modality_named(modality).phantoms
    presets = kind.presets
    known = {f"site-{number + 1}": number for number in range(len(presets))}
    chosen = presets[known.get(site, derive_seed("phantom hospital", site) % len(presets))]
    usual = preset(chosen.scheme)
    grades = usual if scheme is None else scheme
    same = grades.num_classes == usual.num_classes
    total = sum(chosen.counts)
    mix = tuple(count / total for count in chosen.counts) if same else (1 / grades.num_classes,) * grades.num_classes
    train = max(2 * grades.num_classes, round(images * chosen.share))
    held = max(2 * grades.num_classes, round(train * 0.25))
    style = (chosen.style if site in known else None) or kind.drawn_style(generator(site, "style", modality))
    sizes = train, held, round(held * 1.5)
    hospital = PhantomHospital(modality, grades, sizes, style, mix, chosen.label_noise, kind.both_eyes)
    if kind.shown:
        hospital.diseases()  # refuses grades that cannot be drawn
    return hospital
