"""Whole patients on one side: splits, and the share of images that keep their labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedretina.data.manifest import SPLITS, one_spelling
from fedretina.errors import DataError, SettingsError
from fedretina.seeds import derive_seed


def split_by_patient(
    patients: Sequence[str],
    labels: Sequence[int],
    fractions: tuple[float, float, float],
    seed: int,
    homes: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Assign each image to train, val or test, whole patients at a time.

    Patients are walked grade by grade (their highest grade), within a grade in the order of a seeded hash, and
    each goes to the split that lacks most images. So every grade is spread by the fractions, the totals
    are right to about one patient, and the order of rows changes nothing. Names that differ in capital letters or
    blanks alone are one patient.

    Patients who have a split already keep it, whatever became of the others. The new ones go, grade by grade, to the
    split that lacks most images of all; so the totals come back to the fractions as new patients come.

    Not by scikit-learn's `StratifiedGroupKFold`: it knows only folds of equal size, and would move images of existing
    sites from one split to another.

    Args:
        patients: Patient of each image.
        labels: Class of each image.
        fractions: Shares of train, val and test; they sum to 1. A split with share 0 stays empty.
        seed: Any integer.
        homes: The split of patients who have one; one whose share is 0 does not count.

    Returns:
        The split of each image, in the order given.

    Raises:
        SettingsError: The fractions are no shares, or the lengths differ.
        DataError: There are fewer patients than splits to fill, or a split is empty and nobody new is there to fill it.
    """
    if len(patients) != len(labels):
        raise SettingsError(f"found {len(patients)} patients for {len(labels)} labels: give one of each per image.")
    if min(fractions) < 0 or fractions[0] <= 0 or not math.isclose(sum(fractions), 1, abs_tol=1e-6):
        raise SettingsError(f"fractions are {fractions}: give three shares that sum to 1, train above 0.")
    spelling = one_spelling(patients)
    patients = [spelling[patient] for patient in patients]
    highest: dict[str, int] = {}
    for patient, label in zip(patients, labels, strict=True):
        highest[patient] = max(label, highest.get(patient, label))
    wanted = [split for split, share in zip(SPLITS, fractions, strict=True) if share > 0]
    if len(highest) < len(wanted):
        raise DataError(f"found {len(highest)} patients for {len(wanted)} splits: each split needs at least one.")

    sizes = Counter(patients)
    order = sorted(highest, key=lambda name: (highest[name], derive_seed(seed, "split", name), name))
    home = {patient: homes[patient] for patient in order if homes.get(patient) in wanted}
    have = dict.fromkeys(SPLITS, 0)
    for patient, split in home.items():
        have[split] += sizes[patient]
    total = sum(have.values())
    new = [patient for patient in order if patient not in home]
    for patient in new:
        total += sizes[patient]
        lack = [share * total - have[split] for split, share in zip(SPLITS, fractions, strict=True)]
        split = SPLITS[lack.index(max(lack))]
        home[patient] = split
        have[split] += sizes[patient]
    for split in wanted:
        if have[split] == 0:
            _move_one(home, split, new)
    return [home[patient] for patient in patients]


def _move_one(home: dict[str, str], split: str, new: Sequence[str]) -> None:
    """Fill an empty split with the first of the new patients in the split that has most patients."""
    counts = Counter(home.values())
    givers = [name for name in SPLITS if counts[name] > 1 and any(home[patient] == name for patient in new)]
    if not givers:
        raise DataError(
            f"no patient is left for {split}, and those of the other splits stay where they are: add patients, or deal "
            "all out anew with another seed."
        )
    donor = max(givers, key=lambda name: counts[name])
    home[next(patient for patient in new if home[patient] == donor)] = split


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
