"""`fedretina benchmark`, as a researcher calls it."""

import json
import shutil

import pytest
import yaml
from click.testing import CliRunner

from fedretina.cli import main

SMALL = {
    "experiment": {
        "phases": [{"name": "train", "rounds": 1}],
        "images": {"image_size": 32},
        "network": {"encoder": "efficientnet_lite0", "weights": {"source": "none"}, "head": {"width": 16}},
        "training": {"batch_size": 8},
        "phantom_images": 32,
    },
    "splits": {"limit": {"train": 24, "val": 16, "test": 24}},
    "grid": [],
    "noise": [0.0],
}


def run(*words):
    return CliRunner().invoke(main, ["benchmark", *map(str, words)])


@pytest.mark.slow
def test_rows_and_seeds_run_and_the_page_can_be_made_from_the_results_alone(tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump(SMALL))
    words = (
        "feduaa",
        "--plan",
        plan,
        "--phantoms",
        "site-1,site-2",
        "--rows",
        "fedbn,feduaa",
        "--seeds",
        "2",
        "--jobs",
        "2",
    )
    done = run(*words, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "2 of 2: " in done.output
    page = (tmp_path / "out" / "page.md").read_text()
    assert "Research software, not a medical device" in page
    assert "All sites hold phantoms" in page
    cases = (tmp_path / "out" / "cases.html").read_text()
    assert "stays on this machine" in cases
    assert "phantom" in cases.lower()
    assert cases.count("<figure>") >= 2
    results = sorted(path.name for path in (tmp_path / "out" / "results" / "feduaa").iterdir())
    assert results == ["seed-2.json"]

    for name in ("results", "plan.json", "statistics.json"):
        copy = shutil.copytree if (tmp_path / "out" / name).is_dir() else shutil.copy
        (tmp_path / "alone").mkdir(exist_ok=True)
        copy(tmp_path / "out" / name, tmp_path / "alone" / name)
    again = run(*words, "--out", tmp_path / "alone", "--render", "--page", tmp_path / "docs.md")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "docs.md").read_text().replace("alone/", "") == page
    assert json.loads((tmp_path / "alone" / "plan.json").read_text())["rows"] == ["fedbn", "feduaa"]


def test_a_plan_files_sites_take_the_place_of_the_presets(tmp_path, little_encoders):
    plan = tmp_path / "plan.yaml"
    pretrain = {"images": {"image_size": 32}, "network": {"frozen": 1, "weights": {"source": "none"}}}
    encoders = [{"name": "moco", "title": "MoCo", "who": "sites", "enough": 1}]
    asked = {"sites": {"north": None, "west": None}, "pretrain": pretrain, "encoders": encoders, "phantom_images": 40}
    plan.write_text(yaml.safe_dump(asked))
    found = run("p1-oct", "--plan", plan, "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output
    assert sorted(json.loads((tmp_path / "out" / "study.json").read_text())["sites"]) == ["north", "west"]


def test_what_is_asked_wrongly_is_a_sentence(tmp_path):
    for words, sentence in (
        (("nothing",), "there is no benchmark"),
        (("feduaa", "--rows", ","), "rows: give at least 1"),
        (("feduaa", "--rows", "no_such_row,feduaa"), "no row 'no_such_row' in the benchmark feduaa: it may be one of"),
        (("feduaa", "--rows", "fedvag,feduaa"), "no row 'fedvag' in the benchmark feduaa: did you mean fedavg?"),
        (("feduaa", "--rows", "fedavg", "--phantoms", "a"), "'feduaa', which all rows are compared with, is none of"),
        (("feduaa", "--render"), "holds no results of a benchmark to render: run it first, without --render."),
        (("feduaa", "--seeds", "one"), "no whole numbers"),
        (("feduaa", "--site", "here"), "NAME=FILE"),
        (("p1-oct", "--rows", "scratch_1"), "no rows to choose from"),
        (("oct", "--phantoms", "site-1,site-4"), "name sites or spare_sites"),
    ):
        done = run(*words, "--out", tmp_path / "out")
        assert done.exit_code == 2
        assert sentence in done.output


def test_a_first_try_whose_sites_cannot_be_read_does_not_stand_in_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr("fedretina_papers.runner.each_run", lambda *_: iter(()))
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump({**SMALL, "sites": {}}))
    words = ("feduaa", "--plan", plan, "--rows", "feduaa", "--out", tmp_path / "out")
    missing = run(*words, "--site", f"north={tmp_path / 'none.yaml'}")
    assert missing.exit_code == 2
    assert "none.yaml cannot be read: there is no such file" in missing.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["lock"]
    assert "other settings" not in run(*words, "--phantoms", "site-1").output
    assert (tmp_path / "out" / "fixed.json").exists()
    assert "other settings" not in run(*words, "--phantoms", "site-2").output  # nothing has run yet
    (tmp_path / "out" / "runs" / "feduaa").mkdir(parents=True)
    again = run(*words, "--phantoms", "site-3")
    assert again.exit_code == 2
    assert "holds runs that were begun with other settings (sites): give this plan another folder." in again.output
