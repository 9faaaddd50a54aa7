"""The record of a site's report: the figures of the answers, honest at the ends, and nothing but plain JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from site_inputs import CARD, DEGENERATE, site_inputs

from fedretina.evaluation.bootstrap import exact_interval
from fedretina.evaluation.figures import evaluate
from fedretina.evaluation.metrics import ece
from fedretina.evaluation.referable import referable
from fedretina.report.site_report import leaving_scalars, rounds_of, site_report
from fedretina.settings.scalars import BY_TASK, RANGES
from fedretina.uncertainty.estimators import build_estimator
from fedretina.uncertainty.temperature import tempered


def test_figures_are_those_of_the_answers():
    inputs = site_inputs()
    report = site_report(inputs)
    plain = evaluate(inputs.test.logits, inputs.test.labels, build_estimator("evidence"))
    for name, figure in report["figures"].items():
        if not name.startswith(("referable", "threatening")) and name not in ("auc_logits", "auc_supported"):
            assert figure["value"] == pytest.approx(getattr(plain, name), abs=1e-6), name
    disease = referable(
        build_estimator("evidence").predict(inputs.test.logits).probabilities, inputs.test.labels.numpy(), inputs.scheme
    )
    assert report["referable"] == disease._asdict()
    assert report["figures"]["referable_auc"]["value"] == pytest.approx(disease.auc, abs=1e-6)
    assert np.sum(report["confusion"]) == 40
    assert np.trace(report["confusion"]) == report["test"]["right"] == round(plain.accuracy * 40)
    assert sum(report["uncertainty"]["wrong"]) == 40 - report["test"]["right"]
    assert report["reliability"]["ece"] == pytest.approx(plain.ece, abs=1e-6)
    assert np.mean(report["risk_coverage"]["risk"]) == pytest.approx(plain.aurc, abs=1e-5)


def test_intervals_hold_their_figure_and_the_calibration_error_has_none():
    figures = site_report(site_inputs(80))["figures"]
    for name, figure in figures.items():
        if name == "ece":
            assert figure["low"] is None
        else:
            assert figure["low"] < figure["value"] < figure["high"], name


def test_the_auc_input_and_the_estimator_of_the_run_are_used():
    settings = json.loads(json.dumps(site_inputs().settings))
    settings["evaluation"]["auc_input"] = "logits_softmax"
    one, other = site_report(site_inputs())["figures"], site_report(site_inputs(settings=settings))["figures"]
    assert one["auc"] != other["auc"] == other["auc_logits"] == one["auc_logits"]
    softmax = site_report(site_inputs(estimator="softmax"))
    assert softmax["figures"]["nll"] != one["nll"]


def test_all_right_has_the_exact_interval_over_patients():
    found = site_report(DEGENERATE["no errors"]())
    share = exact_interval(12, 12)
    assert found["figures"]["accuracy"]["low"] == pytest.approx(share.low, abs=1e-6)
    assert found["figures"]["accuracy"]["high"] == 1
    assert found["figures"]["error_auroc"] == {"value": None, "low": None, "high": None, "draws_used": 0}
    none = site_report(DEGENERATE["only errors"]())["figures"]["accuracy"]
    assert (none["low"], none["high"]) == (0, pytest.approx(exact_interval(0, 10).high, abs=1e-6))


def test_probabilities_after_the_temperature_are_shown_beside_the_model_s_own():
    inputs = site_inputs()
    report = site_report(inputs)
    seen = tempered(build_estimator("evidence").predict(inputs.test.logits).probabilities, 0.5)
    assert report["reliability_tempered"]["ece"] == pytest.approx(ece(seen, inputs.test.labels.numpy()), abs=1e-6)
    probabilities = {round(float(value), 4) for value in seen.max(1)}
    assert {item["probability"] for item in report["pictures"]["surest_right"]} <= probabilities
    for card in ({}, {"temperature": None}, {**CARD, "temperature": {"value": 1.0}}):
        assert site_report(site_inputs(card=card))["reliability_tempered"] is None


def test_a_long_curve_is_thinned_and_keeps_its_end():
    report = site_report(site_inputs(450, draws=2))
    curve = report["risk_coverage"]
    assert len(curve["coverage"]) == len(curve["risk"]) == 200
    assert curve["coverage"][-1] == 1
    assert curve["risk"][-1] == pytest.approx(1 - report["test"]["right"] / 450, abs=1e-6)


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_splits_give_plain_json_twice_alike(name):
    report = site_report(DEGENERATE[name]())
    text = json.dumps(report, allow_nan=False, sort_keys=True)
    assert text == json.dumps(site_report(DEGENERATE[name]()), allow_nan=False, sort_keys=True)


def test_one_image_has_no_interval_but_the_exact_one():
    figures = site_report(DEGENERATE["one image"]())["figures"]
    bounds = {name for name, figure in figures.items() if figure["low"] is not None}
    assert bounds == {"accuracy", "referable_sensitivity", "threatening_specificity"}


@pytest.mark.parametrize("name", ["six grades", "no errors", "only errors", "one image"])
def test_what_may_leave_is_declared_in_range_and_ordered(name):
    report = site_report(DEGENERATE[name]())
    scalars = leaving_scalars(report)
    assert set(scalars) <= BY_TASK["finalise"]
    for title, value in scalars.items():
        assert RANGES[title][0] <= value <= RANGES[title][1]
        if title.endswith("_low"):
            assert value <= scalars[title.replace("_low", "_high")]
    assert not any("file" in title for title in scalars)


def test_no_figure_for_a_disease_leaves_that_few_patients_stand_behind():
    # Of a disease that all of its patients were found with, the lower bound alone tells how many they are.
    report = site_report(site_inputs())
    who = report["units"]["diseases"]["referable"]["patient"]
    few = min(who["ill_patients"], who["well_patients"])
    told = {least: leaving_scalars(report, least) for least in (few, few + 1)}
    named = {name for name in told[few] if name.startswith("test_referable")}
    assert "test_referable_sensitivity_low" in named
    assert told[few + 1].keys() == told[few].keys() - named


def test_the_history_becomes_flat_rounds():
    history = [
        {"step": "train-0000", "loss": 2.0, "accuracy": 0.5, "weight": None},
        {
            "step": "train-0001",
            "theta": {"value": 0.4, "reason": "youden", "errors": 3},
            "weight": 0.2,
            "validation": {"auc": None, "accuracy": 0.75, "n": 4},
        },
    ]
    first, second = rounds_of(history)
    assert (first["theta"], first["theta_reason"], first["val_auc"], first["loss"]) == (None, None, None, 2.0)
    assert (second["theta"], second["theta_reason"], second["weight"]) == (0.4, "youden", 0.2)
    assert (second["val_auc"], second["val_accuracy"], second["loss"]) == (None, 0.75, None)
