"""The class that a patient stands for where patients move as a whole and classes have no order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def patient_classes(patients: Sequence[str], labels: Sequence[int]) -> dict[str, int]:
    """The class of most of a patient's images; of equal ones the rarer among all images, then the lower.

    Args:
        patients: Patient of each image.
        labels: Class of each image.
    """
    own: dict[str, Counter[int]] = {}
    for patient, label in zip(patients, labels, strict=True):
        own.setdefault(patient, Counter())[label] += 1
    common = Counter(labels)
    return {
        patient: min(counts, key=lambda label: (-counts[label], common[label], label))
        for patient, counts in own.items()
    }
