"""Which images may keep their labels when a run is to learn from a share of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedretina.data.patient_class import patient_classes
from fedretina.errors import SettingsError
from fedretina.seeds import derive_seed


def labelled_subset(patients: Sequence[str], labels: Sequence[int], share: float, seed: int) -> NDArray[np.int64]:
    """Choose the images whose labels a run may use, whole patients at a time.

    All shares cut one list of the patients at different places, so a smaller share lies within a larger one of the same
    seed. The list begins with a patient of each class; after that its classes are mixed as those of all images are. It
    is cut where the number of images comes closest to the share; the patients of its beginning always stay, so a
    share that is too small for them gives more than was asked. The order of rows changes nothing.

    Args:
        patients: Patient of each image.
        labels: Class of each image, 0 or more.
        share: Of the images, above 0 to 1; 1 gives all.
        seed: Any integer.

    Returns:
        int64, numbers of the images in ascending order.

    Raises:
        SettingsError: The share is none, or the lengths differ.
    """
    if not 0 < share <= 1:
        raise SettingsError(f"the share of labelled images is {share}: give a share above 0 to 1.")
    if len(patients) != len(labels):
        counts = f"There are {len(patients)} patients for {len(labels)} labels."
        raise SettingsError("found more patients than labels, or fewer: give one of each per image.").with_note(counts)
    sizes = Counter(patients)
    order, first = _order(patients, labels, sizes, seed)
    held = np.cumsum([sizes[patient] for patient in order], dtype=np.int64)
    # The first of equally close places, so that a larger share never cuts earlier.
    cut = int(np.argmin(np.abs(held - share * len(patients)))) + 1 if order else 0
    chosen = set(order[: len(order) if share == 1 else max(cut, first)])
    return np.array([at for at, patient in enumerate(patients) if patient in chosen], dtype=np.int64)


def _order(patients: Sequence[str], labels: Sequence[int], sizes: Counter[str], seed: int) -> tuple[list[str], int]:
    """All patients in the order in which they get labels, and how many it takes to have every class."""
    classes = patient_classes(patients, labels)
    rank = {patient: derive_seed(seed, "labelled", patient) for patient in sizes}
    drawn = sorted(sizes, key=lambda patient: (rank[patient], patient))
    totals: Counter[int] = Counter()
    for patient in drawn:
        totals[classes[patient]] += sizes[patient]
    before: Counter[int] = Counter()
    place: dict[str, float] = {}
    for patient in drawn:  # where the middle of its images stands among those of its class, 0 to 1
        label = classes[patient]
        place[patient] = (before[label] + sizes[patient] / 2) / totals[label]
        before[label] += sizes[patient]
    drawn.sort(key=lambda patient: place[patient])

    shown: dict[str, set[int]] = {}
    for patient, label in zip(patients, labels, strict=True):
        shown.setdefault(patient, set()).add(label)
    first: list[str] = []
    common = Counter(labels)
    for label in sorted(common, key=lambda label: (common[label], label)):
        if not any(label in shown[patient] for patient in first):
            having = [patient for patient in drawn if label in shown[patient]]
            first.append(next((patient for patient in having if classes[patient] == label), having[0]))
    ahead = set(first)
    return first + [patient for patient in drawn if patient not in ahead], len(first)
