from collections import Counter

import numpy as np
import pytest

from fedretina.data.splits import split_by_patient
from fedretina.errors import DataError, SettingsError

FRACTIONS = (0.7, 0.15, 0.15)


def hospital(count=400):
    rng = np.random.default_rng(0)
    eyes = rng.integers(1, 4, count)
    patients = [f"p{i}" for i in range(count) for _ in range(eyes[i])]
    labels = rng.choice(5, len(patients), p=[0.5, 0.2, 0.2, 0.06, 0.04]).tolist()
    return patients, labels


def test_a_patient_is_in_one_split_and_shares_hold():
    patients, labels = hospital()
    splits = split_by_patient(patients, labels, FRACTIONS, 1)
    homes = set(zip(patients, splits, strict=True))
    assert len(homes) == len(set(patients))
    counts = Counter(splits)
    for split, share in zip(("train", "val", "test"), FRACTIONS, strict=True):
        assert abs(counts[split] - share * len(patients)) <= 3


def test_each_grade_is_spread():
    patients, labels = hospital()
    highest = {}
    for patient, label in zip(patients, labels, strict=True):
        highest[patient] = max(label, highest.get(patient, 0))
    splits = dict(zip(patients, split_by_patient(patients, labels, FRACTIONS, 1), strict=True))
    for grade in range(5):
        mine = [splits[p] for p, g in highest.items() if g == grade]
        for split, share in zip(("train", "val", "test"), FRACTIONS, strict=True):
            assert abs(mine.count(split) - share * len(mine)) <= 0.06 * len(mine) + 2


def test_the_order_of_rows_changes_nothing_and_the_seed_does():
    patients, labels = hospital()
    first = dict(zip(patients, split_by_patient(patients, labels, FRACTIONS, 1), strict=True))
    order = np.random.default_rng(5).permutation(len(patients))
    shuffled = [patients[i] for i in order]
    again = split_by_patient(shuffled, [labels[i] for i in order], FRACTIONS, 1)
    assert dict(zip(shuffled, again, strict=True)) == first
    assert dict(zip(patients, split_by_patient(patients, labels, FRACTIONS, 2), strict=True)) != first


def test_three_patients_fill_three_splits():
    assert sorted(split_by_patient(["a", "b", "c"], [0, 0, 0], FRACTIONS, 3)) == ["test", "train", "val"]


def test_patients_with_a_split_keep_it_and_new_ones_fill_what_lacks():
    patients, labels = hospital(60)
    first = dict(zip(patients, split_by_patient(patients, labels, FRACTIONS, 1), strict=True))
    left = [at for at, name in enumerate(patients) if name != "p7"]
    rest, classes = [patients[at] for at in left], [labels[at] for at in left]
    again = dict(zip(rest, split_by_patient(rest, classes, FRACTIONS, 1, first), strict=True))
    assert again == {name: split for name, split in first.items() if name != "p7"}
    without = dict(zip(rest, split_by_patient(rest, classes, FRACTIONS, 1), strict=True))
    assert sum(without[name] != first[name] for name in without) > 1  # dealt out anew, others move
    new = [f"new{number}" for number in range(40)]
    grown = dict(zip(rest + new, split_by_patient(rest + new, classes + [0, 1] * 20, FRACTIONS, 1, again), strict=True))
    assert {name: grown[name] for name in again} == again
    counts = Counter(grown[name] for name in rest + new)
    for split, share in zip(("train", "val", "test"), FRACTIONS, strict=True):
        assert abs(counts[split] - share * len(rest + new)) <= 3
    for grade in (0, 1):  # the new ones of a grade are spread as well
        mine = Counter(grown[name] for at, name in enumerate(new) if at % 2 == grade)
        assert set(mine) == {"train", "val", "test"}


def test_an_empty_split_is_filled_by_new_patients_alone():
    homes = dict.fromkeys("abc", "train") | {"d": "val"}
    found = split_by_patient(list("abcdx"), [0] * 5, FRACTIONS, 1, homes)
    assert found == ["train", "train", "train", "val", "test"]
    with pytest.raises(DataError, match="no patient is left for test, and those of the other splits stay"):
        split_by_patient(list("abcd"), [0] * 4, FRACTIONS, 1, homes)


def test_a_share_of_zero_stays_empty():
    assert "test" not in split_by_patient([str(i) for i in range(20)], [0] * 20, (0.8, 0.2, 0.0), 1)


def test_what_is_refused():
    with pytest.raises(DataError, match="2 patients for 3 splits"):
        split_by_patient(["a", "a", "b"], [0, 1, 0], FRACTIONS, 1)
    for fractions in ((0.5, 0.2, 0.2), (0.0, 0.5, 0.5), (1.2, -0.1, -0.1)):
        with pytest.raises(SettingsError, match="fractions"):
            split_by_patient(["a", "b", "c"], [0, 0, 0], fractions, 1)
    with pytest.raises(SettingsError, match="2 labels"):
        split_by_patient(["a"], [0, 1], FRACTIONS, 1)


def test_spellings_of_a_patient_share_a_split():
    patients, labels = hospital(60)
    others = [name.upper() if at % 2 else f" {name}" for at, name in enumerate(patients)]
    splits = split_by_patient(patients + others, labels * 2, FRACTIONS, 1)
    assert len(set(zip([name.strip().lower() for name in patients + others], splits, strict=True))) == 60
