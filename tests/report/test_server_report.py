"""The record of the server's report: from stored results of now and of old, and from counts that do not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from site_inputs import DEGENERATE, site_inputs, stored_results

from fedretina.evaluation.metrics import error_detection_auroc
from fedretina.report.render import render_server
from fedretina.report.server_report import server_report
from fedretina.report.summary import server_summary
from fedretina.settings.scheme import preset
from fedretina.uncertainty.estimators import build_estimator


@pytest.fixture(scope="module")
def sites():
    return {
        "site-1": site_inputs(160),
        "site-2": site_inputs(140, preset("normal_3stages"), synthetic=True),
        "site-3": site_inputs(170, preset("icdr5_ungradable")),
    }


@pytest.fixture(scope="module")
def results(sites):
    return stored_results(sites)


def test_means_are_plain_and_no_site_is_named_the_worst(results):
    report = server_report(results)
    for name in ("auc", "accuracy", "ece"):
        values = {site: found[f"test_{name}"] for site, found in results["sites"].items()}
        mean = report["means"][name]
        assert mean["mean"] == pytest.approx(sum(values.values()) / 3, abs=1e-6)
        assert (mean["lowest"], mean["highest"]) == (min(values.values()), max(values.values()))
        assert mean["sites"] == 3
    page = render_server(report)
    assert "this is no ranking" in page
    assert "worst" not in page.partition("<h2>Round by round</h2>")[0].partition("<body>")[2]
    assert report["synthetic"] == ["site-2"]
    assert report["method"] == "FedUAA"


def test_a_site_without_a_figure_is_left_out_of_its_mean(results):
    changed = json.loads(json.dumps(results))
    del changed["sites"]["site-1"]["test_auc"]
    report = server_report(changed)
    assert report["means"]["auc"]["sites"] == 2
    assert "auc" not in report["sites"]["site-1"]["figures"]


def test_pooled_figures_are_near_those_of_all_answers(sites, results):
    pooled = server_report(results)["pooled"]
    answers = [build_estimator("evidence").predict(inputs.test.logits) for inputs in sites.values()]
    wrong = np.concatenate(
        [
            answer.probabilities.argmax(1) != inputs.test.labels.numpy()
            for answer, inputs in zip(answers, sites.values(), strict=True)
        ]
    )
    exact = error_detection_auroc(np.concatenate([answer.uncertainty for answer in answers]), wrong)
    assert pooled["sites"] == ["site-1", "site-2", "site-3"]
    assert (pooled["images"], pooled["wrong"]) == (470, int(wrong.sum()))
    assert pooled["error_auroc"] == pytest.approx(exact, abs=0.03)  # bins lose a little of the order
    weights = np.array([160, 140, 170])
    scores = np.array([results["sites"][site]["test_brier"] for site in sorted(sites)])
    assert pooled["brier"] == pytest.approx(float((weights * scores).sum() / 470), abs=1e-6)
    assert pooled["risk_coverage"]["coverage"][-1] == 1


def test_results_of_old_runs_have_neither_counts_nor_intervals(sites):
    report = server_report(stored_results(sites, counts=False))
    assert report["pooled"] is None
    assert report["counts"] == {"sent": [], "refused": []}
    for site in report["sites"].values():
        assert site["confusion"] is None
        assert all(figure["low"] is None and figure["high"] is None for figure in site["figures"].values())


def test_counts_too_coarse_to_share_edges_are_left_out_and_named(sites):
    small = {**sites, "site-4": site_inputs(10)}
    pooled = server_report(stored_results(small))["pooled"]
    assert pooled["left_out"] == ["site-4"]
    assert pooled["sites"] == ["site-1", "site-2", "site-3"]
    tiny = server_report(stored_results({"a": site_inputs(10), "b": site_inputs(12)}))
    assert tiny["pooled"] is None
    assert tiny["counts"]["sent"] == ["a", "b"]


def test_one_large_site_alone_is_pooled_only_when_it_is_the_only_one(sites):
    assert server_report(stored_results({"a": sites["site-1"]}))["pooled"]["sites"] == ["a"]
    assert server_report(stored_results({"a": sites["site-1"], "b": site_inputs(10)}))["pooled"] is None


def test_contradictory_counts_are_refused_and_named(results):
    changed = json.loads(json.dumps(results))
    changed["sites"]["site-2"]["bin_uncertainty_19_wrong"] = 1e6
    report = server_report(changed)
    assert report["counts"] == {"sent": ["site-1", "site-3"], "refused": ["site-2"]}
    assert report["pooled"]["sites"] == ["site-1", "site-3"]


def test_rounds_carry_bytes_refusals_and_the_validation_of_their_own_model(results):
    report = server_report(results)
    first, second, validate = report["rounds"]
    assert (first["bytes_up"], first["bytes_down"]) == (3000, 3000)
    assert (second["bytes_up"], second["bytes_down"], second["refused"]) == (3000, 4000, 1)
    assert (validate["task"], validate["bytes_up"], validate["bytes_down"]) == ("validate", 0, 3000)
    assert (first["mean_val_auc"], second["mean_val_auc"], validate["mean_val_auc"]) == (0.6, 0.7, None)
    assert second["weight"] == pytest.approx(dict.fromkeys(("site-1", "site-2", "site-3"), 1 / 3))
    assert report["refused"] == [{"step": "train-0001", "site": "site-9", "why": "the loss became infinite"}]
    assert report["without_result"] == {"site-9": "its state is missing"}


def test_the_model_that_goes_down_at_the_end_is_counted(results):
    before = server_report(results)
    sites = sorted(results["sites"])
    end = {"step": "finalise-0000", "task": "finalise", "refused": {}, "bytes_up": dict.fromkeys(sites, 0)}
    after = server_report({**results, "end": {**end, "bytes_down": 1000}})
    *rounds, last = after["rounds"]
    assert rounds == before["rounds"]
    assert (last["step"], last["answers"], last["refused"]) == ("finalise-0000", 3, 0)
    assert (last["bytes_up"], last["bytes_down"]) == (0, 3000)
    assert "2 rounds moved 6.0 kB of weights up and 13.0 kB down." in " ".join(server_summary(after))


def test_the_page_says_which_share_of_the_patients_stands_behind_each_round(results):
    changed = json.loads(json.dumps(results))
    many = {"site-1": 100.0, "site-2": 60.0, "site-3": 40.0}
    first, second, _ = changed["steps"]
    for step in (first, second):
        for site, patients in many.items():
            step["scalars"][site]["patients"] = patients
    second["refused"] = {"site-1": "it was slow"}
    del second["scalars"]["site-1"]
    behind = [entry["behind"] for entry in server_report(changed)["rounds"]]
    # What site-1 said in the first round is not forgotten in the second: the largest hospital is missing there.
    assert [one and (one["share"], one["sites"], one["of_sites"], one["unit"]) for one in behind] == [
        (1.0, 3, 3, "patients"),
        (0.5, 2, 3, "patients"),
        None,
    ]
    page = render_server(server_report(changed))
    assert "Behind the chosen round stand 2 of 3 sites, 50\u00a0% of the training patients." in page
    # A site that never answered may be the largest: then no share is told.
    first["refused"] = {"site-9": "out of memory"}
    assert [one and one["share"] for one in (e["behind"] for e in server_report(changed)["rounds"])] == [None] * 3
    assert "their share is not known" in render_server(server_report(changed))
    # As in runs of old, whose sites told their images alone.
    whole = [
        entry["behind"]
        for entry in server_report(json.loads(json.dumps(results)) | {"steps": [first_of(results)]})["rounds"]
    ]
    assert [(one["share"], one["unit"]) for one in whole] == [(1.0, "images")]


def test_where_no_grade_has_enough_patients_the_page_says_what_the_mean_is_worth(results):
    said = "No grade of any site has enough test patients"
    assert said not in render_server(server_report(results))
    changed = json.loads(json.dumps(results))
    for figures in changed["sites"].values():
        figures.pop("test_auc_supported", None)
        figures["test_grades_supported"] = 0
    assert said in render_server(server_report(changed))


def test_a_record_of_before_is_still_rendered(results):
    old = json.loads(json.dumps(server_report(results)))
    for name in ("chosen_by", "subgroups"):
        del old[name]
    for mean in old["means"].values():
        del mean["lowest"], mean["highest"]
    for entry in old["rounds"]:
        del entry["behind"], entry["val_auc_supported"], entry["mean_val_auc_supported"]
    for site in old["sites"].values():
        del site["grades_supported"]
    assert "in the mean over 3 sites." in render_server(old)


def first_of(results):
    return json.loads(json.dumps(results["steps"][0]))


@pytest.mark.parametrize("name", DEGENERATE)
def test_a_degenerate_site_gives_plain_json(name):
    json.dumps(server_report(stored_results({"a": DEGENERATE[name]()})), allow_nan=False)


def test_a_row_that_this_version_does_not_know_keeps_its_name(results):
    assert server_report({**results, "settings": {"row": "from_another_time"}})["method"] == "from_another_time"


def test_a_site_that_holds_its_counts_back_still_has_a_place_on_the_page(results):
    changed = json.loads(json.dumps(results))
    held = [name for name in changed["sites"]["site-1"] if name.startswith(("images_", "bin_", "confusion_", "bad_"))]
    for name in [*held, "test_brier", "test_ece", "test_accuracy"]:
        changed["sites"]["site-1"].pop(name, None)
    report = server_report(changed)
    assert report["sites"]["site-1"]["images"] == {"train": None, "val": None, "test": None}
    assert "at least" in render_server(report)
    for figures in changed["sites"].values():
        for name in [name for name in figures if name.startswith("images_")]:
            figures.pop(name)
    assert "tested the model on test images of their own" in render_server(server_report(changed))
