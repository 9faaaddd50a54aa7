"""The sentences at the top of the pages, case by case."""

from __future__ import annotations

import copy

import pytest
from site_inputs import DEGENERATE, SHARE, site_inputs, stored_results

from fedretina.report.render import render_site
from fedretina.report.server_report import server_report
from fedretina.report.site_report import site_report
from fedretina.report.summary import referral_words, round_words, server_summary, site_summary


@pytest.fixture(scope="module")
def record():
    return site_report(site_inputs(80))


def said(report) -> str:
    return " ".join(site_summary(report)).replace("\u00a0", " ")


def test_a_whole_site(record):
    text = said(record)
    accuracy = record["figures"]["accuracy"]
    assert (
        f"gave the right grade to {100 * accuracy['value']:.0f} % (95 % interval {100 * accuracy['low']:.0f} to" in text
    )
    assert "Always answering" in text
    assert "AUC of 0.9" in text
    assert "By its grade alone it would refer" in text
    assert "3 of 10 (30 %; 95 % interval 7 to 65 %) of those with referable disease would be missed" in text
    assert "After this site's temperature of 0.50" in text
    assert "only" not in text


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.6, 0.9, "better than chance"),
        (0.4, 0.9, "do not show that its doubt means anything"),
        (0.1, 0.4, "Its doubt misleads"),
        (None, None, "too few right or wrong answers"),
    ],
)
def test_the_worth_of_its_doubt_is_said_by_the_interval(record, low, high, words):
    changed = copy.deepcopy(record)
    changed["figures"]["error_auroc"] |= {"low": low, "high": high}
    assert words in said(changed)


def test_the_doubt_that_refers_patients_is_the_one_that_is_judged(record):
    """Another doubt than the method's u refers patients at many sites; that u may mislead where the other does not."""
    changed = copy.deepcopy(record)
    changed["figures"]["error_auroc"] |= {"value": 0.08, "low": 0.05, "high": 0.12}
    assert "Its doubt misleads" in said(changed)
    changed["doubt"] = {"used": "unlikely", "order": {"value": 0.95, "low": 0.91, "high": 0.97, "draws_used": 200}}
    text = said(changed)
    assert "Its doubt (1 less the chance of its answer) finds its own mistakes with an AUROC of 0.95" in text
    assert "misleads" not in text
    page = render_site(changed)
    tile = page.split('<div class="tile"><div class="name">finds its own mistakes</div>')[1][:80]
    assert '<div class="value">0.95</div>' in tile
    assert page.count("Patients are referred here by another doubt") == 2  # the table's two figures of u
    assert "Patients are referred here by another doubt" not in render_site(record)


def test_kinds_of_disease_have_no_order(record):
    changed = copy.deepcopy(record)
    assert "quadratic kappa</div>" in render_site(changed)
    assert "the graver the mistake" in render_site(changed)
    assert "Its quadratic kappa" in said(changed)
    changed["ordered"] = False
    assert "quadratic kappa</div>" not in render_site(changed)
    assert "the graver the mistake" not in render_site(changed)
    assert "Its quadratic kappa" not in said(changed)


def test_a_doubt_that_is_always_right_has_no_interval_for_another_reason(record):
    changed = copy.deepcopy(record)
    changed["figures"]["error_auroc"] |= {"value": 1.0, "low": None, "high": None}
    assert "that has no interval, since every draw of patients gives the same" in said(changed)


def test_a_model_no_better_than_the_commonest_grade_is_called_so(record):
    changed = copy.deepcopy(record)
    changed["figures"]["accuracy"]["value"] = 0.1
    assert "the model does no better than that" in said(changed)
    assert "the model does no better than that" not in said(record)


def test_degenerate_sites():
    texts = {name: said(site_report(make())) for name, make in DEGENERATE.items()}
    assert "On 1 test image of 1 patient" in texts["one image"]
    assert "no figure on this page can be generalised" in texts["one image"]
    assert "All test images have one grade" in texts["one class"]
    assert "All of these images have the grade “no DR”" in texts["one class"]
    assert "images without referable disease" in texts["one class"]
    assert "Every answer was right" in texts["no errors"]
    assert "AUC of 1.00 (no interval: every draw of patients gives the same)" in texts["no errors"]
    assert "only 12 test patients" in texts["no errors"]
    assert "Every answer was wrong" in texts["only errors"]
    assert "No test image could be graded by a person" in texts["nobody could grade any"]
    assert "does not say which grades are referable" in texts["no referable grades"]
    assert not any("None" in text or "nan" in text for text in texts.values())


def test_a_grade_with_one_patient_leaves_the_auc_without_an_interval():
    text = said(site_report(site_inputs(42, labels=[0, 1, 2] * 13 + [0, 4, 4])))
    assert (
        "Left out, with fewer than 10 patients who have it or who do not: proliferative (1 patient); with them" in text
    )
    assert ", the mean over 3 grades." in text
    few = said(site_report(site_inputs(12, labels=[0, 1, 2] * 3 + [0, 4, 4])))
    assert "too few patients of some grade" in few
    assert "so it follows single patients: do not rely on it" in few


def test_missing_grades_are_named():
    labels = [0, 1, 2] * 10
    assert "3 of 5 grades are present" in said(site_report(site_inputs(30, labels=labels)))


def test_the_server_s_sentences():
    results = stored_results({f"site-{at}": site_inputs(150 + at) for at in range(2)})
    text = " ".join(server_summary(server_report(results))).replace("\u00a0", " ")
    assert text.startswith("2 sites trained together and tested the model on 301 test images")
    assert "in the mean over 2 sites" in text
    assert "1 site gave no result: site-9." in text
    assert "2 rounds moved 4.0 kB of weights up and 7.0 kB down. One answer was refused." in text
    alone = " ".join(server_summary(server_report(stored_results({"a": site_inputs()}))))
    assert "at the one site that has this figure" in alone


def test_the_referral_rule_in_words():
    assert referral_words({}) == ""
    assert referral_words({"threshold": 0.0}) == "Every image counts as doubtful."
    seen = {"images": 40, "errors": 10, "caught": 8, "alarms": 5}
    assert "8 of 10 wrong answers and 5 of 30 right ones" in referral_words({"threshold": 0.5, "validation": seen})
    assert "u is 0.500 or more" in referral_words({"threshold": 0.5})
    assert "u is 0.000000012 or more" in referral_words({"threshold": 1.2e-8})


def test_a_card_that_does_not_know_the_ill_tells_the_load_alone(record):
    changed = copy.deepcopy(record)
    changed["referral"]["test"] = {"load": SHARE, "missed": None}
    assert "would see a doctor." in said(changed)
    changed["referral"] = None
    assert "would see a doctor" not in said(changed)


def test_a_round_is_counted_from_one():
    assert round_words("train-0001", ["train-0000", "train-0001"]) == "round 2"
    assert round_words("tune-0000", ["train-0000"]) == "tune-0000"
