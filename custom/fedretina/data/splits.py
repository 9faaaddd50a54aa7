"""Splits by patient, so that no eye of a training patient is ever tested."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from fedretina.data.manifest import SPLITS
from fedretina.errors import DataError, SettingsError
from fedretina.seeds import derive_seed


def split_by_patient(
    patients: Sequence[str], labels: Sequence[int], fractions: tuple[float, float, float], seed: int
) -> list[str]:
    """Assign each image to train, val or test, whole patients at a time.

    Patients are walked grade by grade (their highest grade), within a grade in the order of a seeded hash, and
    each goes to the split that lacks most images. So every grade is spread by the fractions, the totals
    are right to about one patient, and the order of rows changes nothing.

    Args:
        patients: Patient of each image.
        labels: Class of each image.
        fractions: Shares of train, val and test; they sum to 1. A split with share 0 stays empty.
        seed: Any integer.

    Returns:
        The split of each image, in the order given.

    Raises:
        SettingsError: The fractions are no shares, or the lengths differ.
        DataError: There are fewer patients than splits to fill.
    """
    if len(patients) != len(labels):
        raise SettingsError(f"found {len(patients)} patients for {len(labels)} labels: give one of each per image.")
    if min(fractions) < 0 or fractions[0] <= 0 or not math.isclose(sum(fractions), 1, abs_tol=1e-6):
        raise SettingsError(f"fractions are {fractions}: give three shares that sum to 1, train above 0.")
    highest: dict[str, int] = {}
    for patient, label in zip(patients, labels, strict=True):
        highest[patient] = max(label, highest.get(patient, label))
    wanted = [split for split, share in zip(SPLITS, fractions, strict=True) if share > 0]
    if len(highest) < len(wanted):
        raise DataError(f"found {len(highest)} patients for {len(wanted)} splits: each split needs at least one.")

    sizes = Counter(patients)
    order = sorted(highest, key=lambda name: (highest[name], derive_seed(seed, "split", name), name))
    home: dict[str, str] = {}
    have = dict.fromkeys(SPLITS, 0)
    total = 0
    for patient in order:
        total += sizes[patient]
        lack = [share * total - have[split] for split, share in zip(SPLITS, fractions, strict=True)]
        split = SPLITS[lack.index(max(lack))]
        home[patient] = split
        have[split] += sizes[patient]
    for split in wanted:
        if have[split] == 0:
            _move_one(home, split, order)
    return [home[patient] for patient in patients]


def _move_one(home: dict[str, str], split: str, order: Sequence[str]) -> None:
    """Fill an empty split with the first patient of the split that has most patients."""
    donor = max(SPLITS, key=lambda name: sum(place == name for place in home.values()))
    home[next(patient for patient in order if home[patient] == donor)] = split
