from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from fedretina.data.clients import ClientSkew, divide
from fedretina.data.splits import split_by_patient
from fedretina.errors import DataError, SettingsError


def hospital(count=600, seed=0):
    rng = np.random.default_rng(seed)
    patients, labels = [], []
    for number in range(count):
        label = int(rng.choice(4, p=[0.4, 0.2, 0.1, 0.3]))
        scans = int(rng.integers(1, 4))
        patients += [f"p{number}"] * scans
        labels += [label] * scans
    return patients, labels, split_by_patient(patients, labels, (0.7, 0.15, 0.15), 1)


def counts(homes, labels, splits, split, clients=3):
    table = np.zeros((4, clients), int)
    for home, label, place in zip(homes, labels, splits, strict=True):
        table[label, home] += place == split
    return table


@pytest.mark.parametrize("skew", [ClientSkew(), ClientSkew(name="even"), ClientSkew(alpha=0.1, minimum=5)])
def test_patients_are_whole_and_every_split_follows_the_shares(skew):
    patients, labels, splits = hospital()
    found = divide(patients, labels, splits, 3, skew, 7)
    assert len(set(zip(patients, found.homes, strict=True))) == len(set(patients))
    assert found.homes.dtype == np.int64
    shares = np.array(found.shares)
    assert np.allclose(shares.sum(1), 1)
    for split, least in (("train", skew.minimum), ("val", 1), ("test", 1)):
        table = counts(found.homes, labels, splits, split)
        assert table.sum(0).min() >= least
        assert np.abs(table - shares * table.sum(1, keepdims=True)).max() <= 3  # the largest patient


def test_val_and_test_get_their_part_of_the_minimum():
    patients, labels, splits = hospital()
    images = Counter(splits)
    found = divide(patients, labels, splits, 4, ClientSkew(minimum=100), 2)
    for split in ("train", "val", "test"):
        assert counts(found.homes, labels, splits, split, 4).sum(0).min() >= 100 * images[split] // images["train"]


def test_alpha_says_how_skewed_they_are():
    patients, labels, splits = hospital()

    def spread(alpha):
        found = [divide(patients, labels, splits, 3, ClientSkew(alpha=alpha, minimum=1), seed) for seed in range(8)]
        return np.mean([np.std(np.array(one.shares), axis=1) for one in found])

    assert spread(0.1) > spread(1) > spread(100)
    assert spread(100) < 0.06


def test_the_same_whatever_the_order_and_another_with_another_seed():
    patients, labels, splits = hospital()
    first = divide(patients, labels, splits, 3, ClientSkew(), 1)
    order = np.random.default_rng(5).permutation(len(patients))
    moved = divide([patients[i] for i in order], [labels[i] for i in order], [splits[i] for i in order], 3,
                   ClientSkew(), 1)  # fmt: skip
    assert np.array_equal(moved.homes, first.homes[order])
    assert moved.shares == first.shares
    assert not np.array_equal(divide(patients, labels, splits, 3, ClientSkew(), 2).homes, first.homes)


def test_draws_that_starve_a_client_are_drawn_again():
    patients, labels, splits = hospital(120)
    found = [divide(patients, labels, splits, 4, ClientSkew(alpha=0.3, minimum=25), seed) for seed in range(6)]
    assert max(one.draw for one in found) > 0
    assert all(counts(one.homes, labels, splits, "train", 4).sum(0).min() >= 25 for one in found)


def test_a_patient_counts_for_the_class_of_most_of_its_images_and_the_rarer_of_equal_ones():
    patients = ["a", "a", "a", "b", "b", "c", "d", "e", "f"]
    labels = [0, 0, 1, 0, 1, 0, 0, 1, 1]
    found = divide(patients, labels, ["train"] * 9, 2, ClientSkew(name="even", minimum=1), 1)
    # Class 0 holds a (3), c and d; class 1 holds b (2), e and f: each evens out, whoever is first.
    homes = dict(zip(patients, found.homes.tolist(), strict=True))
    assert homes["c"] == homes["d"] != homes["a"]
    assert homes["e"] == homes["f"] != homes["b"]
    assert sorted(Counter(found.homes.tolist()).values()) == [4, 5]


def test_what_cannot_be_divided():
    patients, labels, splits = hospital(60)
    with pytest.raises(SettingsError, match="1 clients"):
        divide(patients, labels, splits, 1, ClientSkew(), 1)
    with pytest.raises(SettingsError, match="give one each"):
        divide(patients, labels[:-1], splits, 3, ClientSkew(), 1)
    with pytest.raises(DataError, match=r"patients in val for 20 clients"):
        divide(patients, labels, splits, 20, ClientSkew(minimum=1), 1)
    with pytest.raises(DataError, match=r"images in train, and 3 clients need 600"):
        divide(patients, labels, splits, 3, ClientSkew(minimum=200), 1)
    with pytest.raises(DataError, match=r"no division into 2 clients .* raise alpha"):
        divide([f"p{i}" for i in range(20)], [0] * 20, ["train"] * 20, 2, ClientSkew(alpha=0.01, minimum=10), 1)
    with pytest.raises(DataError, match="'p' is in train and in test"):
        divide(["p", "q", "p"], [0, 0, 0], ["train", "train", "test"], 2, ClientSkew(minimum=1), 1)
    with pytest.raises(DataError, match="no image is in train"):
        divide(["p", "q"], [0, 0], ["test", "test"], 2, ClientSkew(minimum=1), 1)
    with pytest.raises(DataError, match="no image is in train"):
        divide([], [], [], 2, ClientSkew(), 1)
    for bad in ({"alpha": 0}, {"alpha": float("nan")}, {"minimum": 0}, {"name": "zipf"}):
        with pytest.raises(ValidationError):
            ClientSkew.model_validate(bad)
