"""Whether a list is of the patients of the test: silent on the site's own, told for another camera's or sicker ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fedretina.gate.gate import Gate
from fedretina.prediction.drift import LEAST, SURE, drift, foretold
from fedretina.prediction.eyes import Owner
from fedretina.prediction.phrases import Phrases
from fedretina.prediction.predictor import ImageRow, Predictor
from fedretina.prediction.worklist import work_list
from fedretina.prediction.worklist_page import drift_words
from fedretina.settings.scheme import preset
from fedretina.storage import read_json
from fedretina.uncertainty.referral import Referral, refer

SCHEME = preset("icdr5")


def card(k=30, n=100, own=None):
    return {
        "referral": {"test": {"load": {"k": k, "n": n, "value": k / n, "low": 0.0, "high": 1.0}}},
        "look": {"own": {}, "patients": own or {"all": 100, "stopped": 2, "odd": 15}},
    }


def patients(referred, of, stopped=0, **steps):
    rows, owners = [], []
    for at in range(of):
        u = 0.9 if at < referred else 0.1
        row = ImageRow(f"{at}", 0, np.eye(5)[0], u, refer(0, u, 0.5, SCHEME), "", "", steps)
        if at < stopped:
            row = ImageRow(f"{at}", None, None, None, Referral(True, ("ungradable",)), "it is nearly black.", "", steps)
        rows.append(row)
        owners.append(Owner(f"p{at}", ""))
    return work_list(rows, owners, SCHEME)


@pytest.mark.parametrize(("k", "n", "of"), [(30, 100, 60), (0, 12, 40), (5, 5, 11), (3, 400, 1000)])
def test_what_is_foretold_is_the_beta_binomial_interval(k, n, of):
    low, high = foretold(k, n, of)
    expected = stats.betabinom(of, k + 0.5, n - k + 0.5)
    assert (low, high) == tuple(int(one) for one in expected.interval(SURE))


def test_few_lists_of_the_same_patients_are_told_and_most_of_others():
    draw = np.random.default_rng(5)
    told = {0.3: 0, 0.6: 0}
    for share in told:
        for _ in range(300):
            seen = int(draw.binomial(100, 0.3))
            low, high = foretold(seen, 100, 80)
            told[share] += not low <= draw.binomial(80, share) <= high
    assert told[0.3] <= 10  # 3 are expected of 300
    assert told[0.6] > 240


def test_a_list_like_the_test_says_that_nothing_was_found():
    found = drift(card(), patients(18, 60))
    assert (found.found, found.looked, found.shifts) == (False, True, ())
    assert drift_words(found, Phrases()) == [Phrases()("drift.none")]


@pytest.mark.parametrize("referred", [2, 50])
def test_a_share_outside_of_what_the_test_foretold_is_told(referred):
    found = drift(card(), patients(referred, 60))
    assert found.found
    assert (found.referred.k, found.referred.n) == (referred, 60)
    assert f"{referred} of 60 patients are referred" in drift_words(found, Phrases())[0]


def test_what_the_gate_adds_is_counted_by_itself_and_only_more_of_it_is_told():
    rows = patients(18, 60)
    odd = [
        one._replace(referral=Referral(True, (*one.referral.reasons, "unusual for this site")))
        for one in (photograph.row for patient in rows for photograph in patient.photographs)
    ]
    found = drift(card(), work_list(odd, [Owner(one.file, "") for one in odd], SCHEME))
    assert not found.referred.outside
    assert (found.odd.k, found.found) == (60, True)
    stopped = drift(card(), patients(30, 60, stopped=12))
    assert (stopped.stopped.k, stopped.referred.n) == (12, 48)
    assert any("stopped before its answer" in one for one in drift_words(stopped, Phrases()))
    none = drift(card(own={"all": 100, "stopped": 40, "odd": 60}), patients(18, 60))
    assert none.stopped.low > 0
    assert not none.found  # fewer than foretold is no harm


def test_the_load_of_those_who_were_answered_at_test_foretells_where_the_card_has_it():
    told = card(k=90, n=100)
    assert drift(told, patients(18, 60)).found
    told["referral"]["test"]["answered_load"] = {"k": 30, "n": 100}
    assert not drift(told, patients(18, 60)).found


@pytest.mark.parametrize(
    ("steps", "shift"),
    [
        ({"features": 1.5}, ("features",)),
        ({"appearance": 1.5}, ("appearance",)),
        ({"bright": 1.5}, ("brighter",)),
        ({"bright": -1.5}, ("darker",)),
        ({"features": 0.9, "bright": -0.9}, ()),
        ({"features": float("nan")}, ()),
    ],
)
def test_photographs_that_are_shifted_as_a_whole_are_told(steps, shift):
    found = drift(card(), patients(18, 60, **steps))
    assert found.shifts == shift
    assert found.found == bool(shift)


def test_too_few_patients_and_a_card_without_counts_tell_nothing():
    few = drift(card(), patients(LEAST - 1, LEAST - 1, features=9.0))
    assert not few.found
    assert "fewer than 10 patients" in drift_words(few, Phrases())[0]
    older = drift({"referral": {"test": None}}, patients(18, 60))
    assert (older.found, older.looked) == (False, False)
    assert drift_words(older, Phrases()) == [Phrases()("drift.unknown")]
    left = drift({"referral": {"test": {"load": {"value": 0.3, "low": 0.2, "high": 0.4}}}}, patients(60, 60))
    assert not left.looked  # an exported card has no counts


def test_the_test_patients_themselves_count_what_their_card_foretells(gated, hospital):
    """Those with a photograph that the site calls ungradable among them: a list has such photographs too."""
    test = hospital.data.split("test")
    assert hospital.data.scheme.ungradable_class in test.labels.tolist()
    predictor = Predictor.load(gated, "cpu")
    rows = predictor.answer([str(at) for at in range(len(test.labels))], test.images)
    found = drift(predictor.card, work_list(rows, [Owner(one, "") for one in test.patients], predictor.scheme))
    look = predictor.card["look"]
    assert look["patients"] == {"all": found.patients, "stopped": found.stopped.k, "odd": found.odd.k}
    assert look["own"]["stopped"] < found.stopped.k <= found.odd.k < found.patients
    assert not found.found


def test_the_counts_of_an_older_card_foretell_only_where_no_photograph_was_left_out_of_them():
    older = card() | {"look": {"own": {"patients": 100, "patients_stopped": 2, "patients_odd": 15}}}
    for name, compared in (("icdr5", True), ("icdr5_ungradable", False)):
        found = drift(older | {"scheme": preset(name).model_dump(mode="json")}, patients(18, 60, stopped=30))
        assert found.looked
        assert (found.stopped is not None, found.odd is not None) == (compared, compared)


def test_the_gate_measures_a_shift_of_brightness_that_it_lets_pass(gated, hospital):
    predictor = Predictor.load(gated, "cpu")
    assert isinstance(predictor.gate, Gate)
    own = hospital.data.split("val").images
    shown = predictor.answered(own)[1]
    steps = predictor.gate.steps(shown)
    assert set(steps) == {"features", "middle", "appearance", "bright"}
    assert abs(np.mean(steps["features"])) < 0.6  # in steps of the same images, but for those called ungradable
    darker = (own.float() * 0.8).to(torch.uint8)
    moved = predictor.gate.steps(shown._replace(images=darker))["bright"]
    assert np.median(moved) < np.median(steps["bright"]) - 0.3
    rows = predictor.answer([str(at) for at in range(8)], own[:8])
    assert [row.steps["bright"] for row in rows] == pytest.approx(steps["bright"][:8].tolist())


def test_a_model_from_before_there_was_a_gate_measures_nothing(hospital):
    predictor = Predictor.load(hospital.final, "cpu")
    row = predictor.answer(["a"], hospital.data.split("val").images[:1])[0]
    assert dict(row.steps) == {}
    assert read_json(hospital.final / "card.json").get("look") is None
