from collections import Counter

import numpy as np
import pytest

from fedretina.data.splits import labelled_subset, patient_classes
from fedretina.errors import SettingsError

SHARES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.9, 1.0)


def hospital(count=1200, seed=0):
    rng = np.random.default_rng(seed)
    patients, labels = [], []
    for number in range(count):
        label = int(rng.choice(4, p=[0.5, 0.02, 0.08, 0.4]))
        scans = int(rng.integers(1, 5))
        patients += [f"p{number}"] * scans
        labels += [label if rng.random() < 0.9 else int(rng.integers(4)) for _ in range(scans)]
    return patients, labels


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_nested_whole_and_have_every_class(seed):
    patients, labels = hospital()
    before: set[int] = set()
    for share in SHARES:
        found = labelled_subset(patients, labels, share, seed)
        assert found.dtype == np.int64
        assert np.all(np.diff(found) > 0)
        chosen = {patients[at] for at in found}
        assert len(found) == sum(patient in chosen for patient in patients)
        assert {labels[at] for at in found} == {0, 1, 2, 3}
        assert before <= set(found.tolist())
        before = set(found.tolist())
    assert len(before) == len(patients)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.77])
def test_sizes_and_classes_follow_the_share(share):
    patients, labels = hospital()
    found = labelled_subset(patients, labels, share, 3)
    assert abs(len(found) - share * len(patients)) <= 2  # half of the largest patient
    classes = patient_classes(patients, labels)
    everybody = Counter(classes[patient] for patient in patients)
    chosen = Counter(classes[patients[at]] for at in found)
    for label, images in everybody.items():
        assert abs(chosen[label] - share * images) <= 8  # two of the largest patients


def test_seed_counts_and_the_order_of_rows_does_not():
    patients, labels = hospital(300)
    first = {patients[at] for at in labelled_subset(patients, labels, 0.2, 1)}
    order = np.random.default_rng(1).permutation(len(patients))
    moved, same = [patients[i] for i in order], [labels[i] for i in order]
    assert {moved[at] for at in labelled_subset(moved, same, 0.2, 1)} == first
    assert {patients[at] for at in labelled_subset(patients, labels, 0.2, 2)} != first


def test_a_class_that_no_patient_stands_for_is_there_too():
    patients = ["a"] * 3 + ["b"] * 3 + [f"p{i}" for i in range(60)]
    labels = [0, 0, 1, 0, 0, 2] + [0] * 60
    assert {labels[at] for at in labelled_subset(patients, labels, 0.01, 1)} == {0, 1, 2}


def test_one_patient_one_class_nobody():
    assert labelled_subset(["a"] * 5, [0, 1, 0, 2, 0], 0.01, 1).tolist() == [0, 1, 2, 3, 4]
    assert len(labelled_subset([f"p{i}" for i in range(10)], [3] * 10, 0.01, 1)) == 1
    assert len(labelled_subset([f"p{i}" for i in range(10)], [3] * 10, 0.5, 1)) == 5
    assert labelled_subset([], [], 0.5, 1).tolist() == []
    assert labelled_subset([], [], 1.0, 1).tolist() == []


def test_what_is_refused():
    for share in (0, -0.1, 1.01, float("nan")):
        with pytest.raises(SettingsError, match="above 0 to 1"):
            labelled_subset(["a"], [0], share, 1)
    with pytest.raises(SettingsError, match="1 patients for 2 labels"):
        labelled_subset(["a"], [0, 1], 0.5, 1)


def test_class_of_a_patient():
    patients = ["a", "a", "a", "b", "b", "c", "d", "d"]
    labels = [0, 0, 1, 0, 1, 0, 2, 1]
    assert patient_classes(patients, labels) == {"a": 0, "b": 1, "c": 0, "d": 2}
