"""What is stored of the comparisons, against figures recomputed from the answers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from made_runs import write_benchmark
from scipy.stats import ttest_rel

from fedretina.errors import StateError
from fedretina.storage import read_json, write_json
from fedretina_papers.compared import statistics
from fedretina_papers.comparisons import drawn_figures
from fedretina_papers.measures import MEASURES
from fedretina_papers.statistics.delong import delong_test
from fedretina_papers.statistics.multiple_tests import holm, two_sided
from fedretina_papers.statistics.paired_seeds import seed_test
from fedretina_papers.stored import read_answers, read_benchmark

SITES = ("aptos2019", "odir5k")


@pytest.fixture
def found(made):
    return read_json(made / "statistics.json")


def _aucs(made, name, site):
    return [
        read_json(made / "results" / name / f"seed-{seed}.json")["sites"][site]["test"]["auc"] for seed in (1, 2, 3)
    ]


def test_the_test_over_seeds_is_the_papers(made, found):
    for site in SITES:
        ours, theirs = _aucs(made, "feduaa", site), _aucs(made, "singleset", site)
        entry = found["comparisons"]["singleset"]["sites"][site]["measures"]["auc"]
        assert entry["difference"] == pytest.approx(np.mean(ours) - np.mean(theirs), abs=1e-6)
        assert entry["by_seed"] == pytest.approx(np.subtract(ours, theirs), abs=1e-6)
        assert entry["seeds"]["p"] == pytest.approx(ttest_rel(ours, theirs).pvalue, abs=1e-6)
    means = [np.mean([_aucs(made, name, site) for site in SITES], axis=0) for name in ("feduaa", "singleset")]
    mean = found["comparisons"]["singleset"]["mean"]["measures"]["auc"]
    assert mean["seeds"]["p"] == pytest.approx(ttest_rel(*means).pvalue, abs=1e-6)
    assert mean["difference"] == pytest.approx(np.mean(means[0] - means[1]), abs=1e-6)


def test_known_effects_are_found_and_none_is_invented(found):
    far, near = (found["comparisons"][name]["mean"]["measures"]["auc"] for name in ("singleset", "fedbn"))
    assert far["together"]["holm"] < 0.05
    assert far["patients"]["low"] > 0
    assert near["together"]["holm"] > 0.05
    assert found["comparisons"]["singleset"]["mean"]["measures"]["brier"]["difference"] < 0  # less is better


def test_a_row_that_answers_alike_does_not_differ(found):
    twin = found["comparisons"]["feduaa_tuned"]
    for cell in (twin["mean"], *twin["sites"].values()):
        entry = cell["measures"]["auc"]
        assert (entry["difference"], entry["seeds"]["p"], entry["patients"]["p"]) == (0, None, 1)
        assert (entry["patients"]["variance"], entry["together"]["p"]) == (0, None)
    assert twin["mean"]["delong"]["p"] == 1


def test_delong_by_hand(made, found):
    tests = []
    for seed in (1, 2, 3):
        ours, theirs = (read_answers(made, name, seed, "aptos2019") for name in ("feduaa", "fedbn"))
        kept = np.isin(ours.labels, [2, 3, 4])
        scores = [answers.probabilities[:, 2:].sum(1) for answers in (ours, theirs)]
        tests.append(delong_test(*scores, kept, list(ours.patients)))
    z = np.mean([one.difference for one in tests]) / np.mean([one.variance for one in tests]) ** 0.5
    cell = found["comparisons"]["fedbn"]["sites"]["aptos2019"]["delong"]
    assert (cell["z"], cell["p"]) == pytest.approx((z, two_sided(z)), abs=1e-5)
    mean = found["comparisons"]["fedbn"]["mean"]["delong"]
    assert (mean["used"], mean["z"]) == (1, pytest.approx(z, abs=1e-5))  # odir5k names no referable grade
    assert found["comparisons"]["fedbn"]["sites"]["odir5k"]["delong"] is None


def test_images_that_nobody_could_grade_are_left_out_with_their_patients(tmp_path):
    write_benchmark(tmp_path, ("fedbn", "feduaa"), (1,), ("aptos2019",), patients=40)
    for name in ("fedbn", "feduaa"):
        _change(tmp_path, name, referable=np.array([2, 3]), ungradable=np.int64(4))
    cell = statistics(tmp_path, draws=20)["comparisons"]["fedbn"]["sites"]["aptos2019"]["delong"]
    ours, theirs = (read_answers(tmp_path, name, 1, "aptos2019") for name in ("feduaa", "fedbn"))
    kept = ours.labels < 4
    scores = [one.probabilities[kept, 2:4].sum(1) / one.probabilities[kept, :4].sum(1) for one in (ours, theirs)]
    people = np.asarray(ours.patients)[kept].tolist()
    expected = delong_test(*scores, np.isin(ours.labels[kept], [2, 3]), people)
    assert (cell["z"], cell["variance"]) == pytest.approx((expected.z, expected.variance), abs=1e-5)


def test_no_draw_of_one_site_is_that_of_another(made):
    answers = {("feduaa", 1): read_answers(made, "feduaa", 1, "aptos2019")}
    here, there = (drawn_figures(answers, site, 50)["feduaa", 1]["accuracy"] for site in ("here", "there"))
    assert not np.allclose(here, there)
    assert np.array_equal(here, drawn_figures(answers, "here", 50)["feduaa", 1]["accuracy"])


def test_families_are_adjusted_whole(found):
    rows = list(found["comparisons"])
    means = [found["comparisons"][row]["mean"] for row in rows]
    cells = [found["comparisons"][row]["sites"][site] for row in rows for site in SITES]
    for family in (means, cells):
        for key in MEASURES:
            for test in ("seeds", "together"):
                entries = [entry for cell in family if (entry := cell["measures"][key][test]) is not None]
                assert [one["holm"] for one in entries] == pytest.approx(holm([one["p"] for one in entries]), abs=2e-5)
        tests = [cell["delong"] for cell in family if cell["delong"] is not None]
        assert [one["holm"] for one in tests] == pytest.approx(holm([one["p"] for one in tests]), abs=2e-5)


def test_together_both_chances_add_up(found):
    for name in ("singleset", "fedbn"):
        for key, entry in found["comparisons"][name]["mean"]["measures"].items():
            if not MEASURES[key].drawn:
                assert entry["together"] is None
                continue
            expected = seed_test(entry["by_seed"], entry["patients"]["variance"])
            assert entry["together"]["p"] == pytest.approx(expected.p, abs=1e-3)
            wide = entry["together"]["high"] - entry["together"]["low"]
            assert wide > entry["patients"]["high"] - entry["patients"]["low"]


def test_the_calibration_error_is_not_drawn(found):
    entry = found["comparisons"]["fedbn"]["mean"]["measures"]["ece"]
    assert entry["patients"] is None
    assert entry["seeds"]["n"] == 3


def test_uncertainty_is_counted_over_all_seeds(made, found):
    spread = found["uncertainty"]["feduaa"]["aptos2019"]
    assert sum(spread["right"]) + sum(spread["wrong"]) == 3 * 120
    answers = [read_answers(made, "feduaa", seed, "aptos2019") for seed in (1, 2, 3)]
    u, wrong = (np.concatenate([getattr(one, name) for one in answers]) for name in ("uncertainty", "wrong"))
    assert spread["median_wrong"] == pytest.approx(np.median(u[wrong]), abs=1e-6)
    assert sum(spread["wrong"][10:]) == np.sum(u[wrong] > 0.5)
    assert found["tested"]["aptos2019"]["patients"] == 60
    assert found["tested"]["aptos2019"]["images"] == 120


def test_the_same_runs_give_the_same_bytes(made, tmp_path):
    shutil.copytree(made, tmp_path / "again")
    (tmp_path / "again" / "statistics.json").unlink()
    statistics(tmp_path / "again", draws=300)
    assert (tmp_path / "again" / "statistics.json").read_bytes() == (made / "statistics.json").read_bytes()


def test_repeated_splits_are_drawn_over_the_patients_of_all_seeds(tmp_path):
    write_benchmark(tmp_path, ("fedbn", "feduaa"), splits="repeated", patients=30)
    tested = statistics(tmp_path, draws=100)["tested"]["aptos2019"]
    assert 30 < tested["patients"] <= 45
    people = [set(read_answers(tmp_path, "feduaa", seed, "aptos2019").patients) for seed in (1, 2, 3)]
    shares = [len(one & other) / 30 for at, one in enumerate(people) for other in people[:at]]
    assert tested["shared"] == pytest.approx(np.mean(shares), abs=1e-6)


def test_a_reference_alone_and_seeds_that_do_not_meet(tmp_path):
    write_benchmark(tmp_path, ("fedbn", "feduaa"), (1,), run=("feduaa",), patients=10)
    assert statistics(tmp_path, draws=20)["comparisons"] == {}
    write_benchmark(tmp_path, ("fedbn", "feduaa"), (2,), run=("fedbn",), patients=10)
    assert statistics(tmp_path, draws=20)["comparisons"] == {}


def test_a_row_that_took_part_at_one_site_only(tmp_path):
    write_benchmark(tmp_path, ("fedbn", "feduaa"), patients=12)
    for seed in (1, 2, 3):
        path = tmp_path / "results" / "fedbn" / f"seed-{seed}.json"
        record = read_json(path)
        del record["sites"]["odir5k"]
        write_json(path, record)
    found = statistics(tmp_path, draws=50)["comparisons"]["fedbn"]
    assert list(found["sites"]) == ["aptos2019"]
    assert (
        found["mean"]["measures"]["auc"]["difference"] == found["sites"]["aptos2019"]["measures"]["auc"]["difference"]
    )


def test_one_seed_has_patients_but_no_spread(tmp_path):
    write_benchmark(tmp_path, ("singleset", "feduaa"), (4,), patients=40)
    entry = statistics(tmp_path, draws=200)["comparisons"]["singleset"]["mean"]["measures"]["auc"]
    assert (entry["seeds"]["n"], entry["seeds"]["p"], entry["together"]["p"]) == (1, None, None)
    assert entry["patients"]["p"] is not None


def _change(out, name, **arrays):
    path = out / "answers" / name / "seed-1" / "aptos2019.npz"
    with np.load(path) as stored:
        np.savez(path, **{**{key: stored[key] for key in stored.files}, **arrays})


def test_answers_that_do_not_belong_together_are_refused(tmp_path):
    write_benchmark(tmp_path, ("fedbn", "feduaa"), (1,), patients=10)
    good = read_answers(tmp_path, "fedbn", 1, "aptos2019")
    _change(tmp_path, "fedbn", patients=np.array(good.patients[::-1]))
    with pytest.raises(StateError, match="different test images"):
        statistics(tmp_path, draws=10)
    _change(tmp_path, "fedbn", patients=np.array(good.patients), probabilities=good.probabilities[:, ::-1])
    with pytest.raises(StateError, match="another accuracy"):
        statistics(tmp_path, draws=10)
    path = tmp_path / "answers" / "fedbn" / "seed-1" / "aptos2019.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(StateError, match="cannot be read"):
        statistics(tmp_path, draws=10)
    path.unlink()
    with pytest.raises(StateError, match="is missing"):
        statistics(tmp_path, draws=10)


def test_the_record_is_plain_json(made):
    assert json.loads((made / "statistics.json").read_text())["draws"] == 300
    assert read_benchmark(made).rivals == ("singleset", "fedbn", "feduaa_tuned")


def test_a_row_helps_only_where_it_beats_every_row_alone(tmp_path):
    rows, alike = ("singleset", "singleset_longer", "fedbn", "feduaa"), {"singleset_longer": 1.5}
    quality = {"singleset": 0.7, "fedbn": 0.8, "feduaa": 1.6}
    write_benchmark(tmp_path, rows, run=("singleset", "fedbn", "feduaa"), quality=quality)
    waiting = statistics(tmp_path, draws=100)["beaten_least"]["auc"]
    assert waiting["feduaa"]["holm"] is None  # a row alone has not run, so that nobody knows
    write_benchmark(tmp_path, rows, quality=quality)  # the longer one is at 1.0
    found = statistics(tmp_path, draws=300)["beaten_least"]
    one = found["auc"]["feduaa"]
    assert (one["control"], one["holm"] < 0.05, one["low"] > 0) == ("singleset_longer", True, True)
    assert found["brier"]["feduaa"]["mean"] > 0  # less is better, so that more than 0 is for the row
    assert (found["auc"]["fedbn"]["control"], found["auc"]["fedbn"]["holm"]) == ("singleset_longer", 1)
    write_benchmark(tmp_path, rows, quality=quality | alike)
    close = statistics(tmp_path, draws=300)["beaten_least"]["auc"]["feduaa"]
    assert close["holm"] > 0.05
