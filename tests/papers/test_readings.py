"""Other readings of stored answers: against the same worked out by hand, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made_asked import made_asked

from fedretina.errors import SettingsError, StateError
from fedretina.uncertainty.temperature import fit_temperature
from fedretina_papers.asked import Read, keep, read_asked
from fedretina_papers.choices import ReadingChoice
from fedretina_papers.measure import measured
from fedretina_papers.one_run import sites_of
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.readings import derive_readings, reread

SMALL = {
    "name": "small",
    "paper": "fedee",
    "reference": "fedee",
    "rows": ["fedavg", "fedee", "mc_dropout", "fedee_tweu"],
    "seeds": [1, 2, 3],
    "sites": {"site-1": None},
    "experiment": {"images": {"image_size": 32}, "phantom_images": 40, "network": {"encoder": "efficientnet_lite0"}},
    "splits": {"kind": "once"},
}


def plan(**words):
    return BenchmarkPlan.read({**SMALL, **words})


def softmax(logits):
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def entropy(p):
    return -(p * np.log(p)).sum(1) / math.log(p.shape[1])


def test_the_final_head_alone():
    asked = made_asked()
    found = reread([asked], "softmax")
    answer = found.read.predict(found.asked.logits)
    by_hand = softmax(asked.logits[:, -1].numpy().astype(np.float64))
    assert answer.probabilities == pytest.approx(by_hand)
    assert answer.uncertainty == pytest.approx(entropy(by_hand))
    assert found.asked.outside["unseen"].logits.shape == (20, 1, 4)


def test_the_majority_looks_at_no_image():
    asked = made_asked()
    found = reread([asked], "majority")
    answer = found.read.predict(found.asked.logits)
    shares = (np.bincount(asked.val_labels, minlength=4) + 1) / (len(asked.val_labels) + 4)
    assert answer.probabilities == pytest.approx(np.tile(shares, (60, 1)), abs=1e-6)
    assert measured(found.asked, found.read)["test"]["auc"] == 0.5
    assert found.asked.outside["unseen"].logits.shape == (20, 1, 4)


def test_what_members_disagree_on():
    asked = made_asked()
    found = reread([asked], "disagreement")
    answer = found.read.predict(found.asked.logits)
    each = softmax(asked.logits.numpy().astype(np.float64))
    apart = entropy(each.mean(1)) - np.mean([entropy(each[:, m]) for m in range(each.shape[1])], axis=0)
    assert answer.uncertainty == pytest.approx(apart, abs=1e-9)
    assert answer.probabilities == pytest.approx(each.mean(1))
    assert found.asked.outside["unseen"].logits.shape == asked.outside["unseen"].logits.shape


def test_one_temperature_from_validation_alone():
    asked = made_asked()
    found = reread([asked], "temperature")
    val = softmax(asked.val_logits[:, -1].numpy().astype(np.float64))
    fitted = fit_temperature(val, asked.val_labels)
    assert found.temperature.value == pytest.approx(fitted.value)
    assert fitted.reason == "fitted"
    assert fitted.value != 1
    by_hand = softmax(asked.logits[:, -1].numpy().astype(np.float64) / fitted.value)
    assert found.read.predict(found.asked.logits).probabilities == pytest.approx(by_hand)
    # What the test images are graded as changes nothing.
    other = reread([asked._replace(labels=asked.labels[::-1].copy())], "temperature")
    assert other.temperature == found.temperature
    without = asked._replace(val_logits=asked.val_logits[:0], val_labels=asked.val_labels[:0])
    assert reread([without], "temperature").temperature.value == 1


def test_a_deep_ensemble_is_the_mean_softmax_of_its_runs():
    runs = [made_asked(seed, members=1) for seed in (1, 2, 3)]
    found = reread(runs, "deep_ensemble")
    by_hand = np.mean([softmax(run.logits[:, 0].numpy().astype(np.float64)) for run in runs], axis=0)
    answer = found.read.predict(found.asked.logits)
    assert answer.probabilities == pytest.approx(by_hand)
    assert answer.uncertainty == pytest.approx(entropy(by_hand))
    figures = measured(found.asked, found.read)
    assert figures["test"]["accuracy"] == pytest.approx(np.mean(by_hand.argmax(1) == runs[0].labels))
    assert set(figures["strangers"]["unseen"]["diseases"]) == {"erm", "rvo"}
    assert figures["others"]["site-9"]["outside"] == 7
    with pytest.raises(StateError, match="different images"):
        reread([runs[0], runs[1]._replace(patients=("x",) * 60)], "deep_ensemble")


def test_what_was_kept_comes_back(tmp_path):
    asked = made_asked()
    path = tmp_path / "site-1.npz"
    keep(asked, Read("softmax_mean", "answer", 0.05), path)
    again = read_asked(path)
    for name in ("logits", "val_logits"):
        assert (getattr(again, name) == getattr(asked, name)).all()
    assert (again.labels == asked.labels).all()
    assert again.patients == asked.patients
    assert again.referable == (2, 3)
    assert again.outside["unseen"].diseases == ("erm", "rvo")
    assert again.outside["site-9"].other_site
    assert not again.outside["unseen"].other_site
    np.savez(path, probabilities=np.zeros((1, 2)))
    with pytest.raises(StateError, match="without their logits"):
        read_asked(path)


def test_trials_take_runs_in_turn():
    def trials(members, seeds):
        return ReadingChoice(name="deep", of="fedavg", reading="deep_ensemble", members=members).trials(seeds)

    assert trials(2, (1, 2, 3)) == {1: (1, 2), 2: (2, 3), 3: (3, 1)}
    assert trials(3, (4, 5, 6)) == {4: (4, 5, 6)}
    assert trials(4, (1, 2, 3)) == {}
    assert ReadingChoice(name="t", of="fedavg", reading="temperature").trials((1, 2)) == {1: (1,), 2: (2,)}


def test_readings_that_cannot_be_are_refused():
    deep = {"name": "deep", "of": "fedavg", "reading": "deep_ensemble", "members": 2}
    assert plan(readings=[deep]).readings[0].members == 2
    with pytest.raises(SettingsError, match="use 'once' or 'given'"):
        plan(readings=[deep], splits={"kind": "repeated"})
    with pytest.raises(SettingsError, match="none of the rows"):
        plan(readings=[{**deep, "of": "fedprox"}])
    with pytest.raises(SettingsError, match="differ in name"):
        plan(readings=[{**deep, "name": "fedavg"}])
    for of, reading, needs in (
        ("fedee_tweu", "softmax", "softmax"),
        ("mc_dropout", "temperature", "without dropout"),
        ("fedavg", "dempster", "evidence"),
        ("fedavg", "disagreement", "several members"),
        ("fedee_tweu", "disagreement", "softmax"),
    ):
        with pytest.raises(SettingsError, match=needs):
            plan(readings=[{"name": "other", "of": of, "reading": reading}])
    plan(readings=[{"name": "fused", "of": "fedee_tweu", "reading": "dempster"}])
    plan(readings=[{"name": "apart", "of": "mc_dropout", "reading": "disagreement"}])


def test_readings_of_runs_that_are_not_there_say_so(tmp_path):
    deep = {"name": "deep", "of": "fedavg", "reading": "deep_ensemble", "members": 3}
    missing = derive_readings(plan(readings=[deep]), tmp_path, lambda *told: None)
    assert list(missing) == ["deep, seed 1"]
    assert "seeds 1, 2, 3 did not run" in missing["deep, seed 1"]


def test_a_split_made_once_is_the_same_for_every_seed(tmp_path):
    once, again = (sites_of(plan(), tmp_path, seed)["site-1"] for seed in (1, 2))
    given = sites_of(plan(splits={"kind": "given"}), tmp_path, 1)["site-1"]
    other = sites_of(plan(tuning_seed=7), tmp_path, 1)["site-1"]
    assert once.split("test").files == again.split("test").files
    assert once.fingerprint == again.fingerprint
    assert once.split("test").files != given.split("test").files
    assert once.split("test").files != other.split("test").files
