"""Starts over shares of the labels: the rows that a plan makes, both stages, and the page."""

from __future__ import annotations

import json

import pytest
from made_oct_folder import write_oct
from test_oct_run import PHASES, SMALL

from fedretina.errors import SettingsError
from fedretina.storage import write_json
from fedretina_papers.engine.records import Records
from fedretina_papers.label_efficiency import LABELS, run_labels
from fedretina_papers.label_page import difference_table, share_table, write_label_page
from fedretina_papers.label_plan import LabelPlan, Share
from fedretina_papers.stored import read_benchmark

STARTS = [
    {"name": "scratch", "title": "from scratch"},
    {"name": "own", "title": "pre-trained here", "pretrain": {"phases": {"pretrain": {"rounds": 2}}}},
]
WORDS = {
    "name": "labels",
    "starts": STARTS,
    "against": ["scratch"],
    "shares": [0.5, 1.0],
    "seeds": [1],
    "sites": {"site-1": None},
    "experiment": SMALL["experiment"],
}


def plan(**words):
    return LabelPlan.read({**WORDS, **words})


def test_a_row_for_each_start_and_share():
    few = {"share": 0.5, "settings": {"phases": {"train": {"training": {"batch_size": 4}}}}}
    made = plan(shares=[few, 1.0])
    rows = made.fine_tuning({"own": {1: {"file": "x", "sha256": "a" * 64}}})
    assert [choice.name for choice in rows.rows] == ["scratch_50", "scratch_100", "own_50", "own_100"]
    found = {choice.name: rows.experiment_of(choice, 1, {}) for choice in rows.rows}
    assert {name: one.phases[0].label_share for name, one in found.items()} == {
        "scratch_50": 0.5, "scratch_100": 1.0, "own_50": 0.5, "own_100": 1.0,
    }  # fmt: skip
    assert all([phase.name for phase in one.phases] == ["train"] for one in found.values())
    assert found["own_50"].phases[0].training.batch_size == 4
    assert found["own_100"].phases[0].training.batch_size == 8
    assert found["own_50"].network.weights.sha256 == "a" * 64
    assert found["scratch_50"].network.weights.source == "none"
    first = made.pre_training()
    experiment = first.experiment_of(first.rows[0], 1, {})
    assert [(phase.name, phase.rounds) for phase in experiment.phases] == [("pretrain", 2)]
    assert Share(share=0.005).tag == "0p5"


def test_plans_are_checked_before_anything_trains():
    for words, sentence in (
        ({"against": ["nobody"]}, "name some of the starts"),
        ({"shares": [1.0, 0.5]}, "ascend"),
        ({"shares": [1.5]}, "less than or equal to 1"),
        ({"seeds": [1, 1]}, "list each once"),
        ({"row": "no_such_row"}, "no row"),
        ({"experiment": {"phases": {"train": {"rounds": 0}}}}, "rounds"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            plan(**words)


@pytest.mark.slow
def test_both_stages_run_and_go_on_where_they_stopped(little_encoder, tmp_path):
    experiment = {**SMALL["experiment"], "phases": PHASES}
    starts = [STARTS[0], {**STARTS[1], "pretrain": {}}]
    made = plan(shares=[1.0], experiment=experiment, starts=starts)
    told = []
    assert run_labels(made, tmp_path, 1, told.append) == {}
    assert [(one.done, one.total) for one in told] == [(1, 1), (1, 2), (2, 2)]
    encoder = json.loads((tmp_path / "encoders" / "pretrain_own" / "seed-1.json").read_text())
    record = json.loads((tmp_path / "results" / "own_100" / "seed-1.json").read_text())
    assert record["settings"]["network"]["weights"]["sha256"] == encoder["sha256"]
    assert [note["phase"] for note in record["history"]] == ["train"]
    again = []
    assert run_labels(made, tmp_path, 1, again.append) == {}
    assert again == []
    write_label_page(tmp_path, tmp_path / "page.md", tmp_path / "pictures")
    page = (tmp_path / "page.md").read_text()
    assert "pre-trained here began from scratch, 1 round" in page
    assert list((tmp_path / "pictures").glob("*.svg"))
    with pytest.raises(SettingsError, match="another folder"):
        run_labels(plan(shares=[1.0], experiment=experiment), tmp_path, 1, told.append)


@pytest.fixture
def stored(tmp_path):
    """Two starts at two shares, one of which was not run for one start."""
    rows = ("scratch_50", "scratch_100", "own_50", "own_100")
    write_oct(tmp_path, rows, run=rows[:3], reference="scratch_100", paper="oct_labels", name="labels")
    asked = {
        "starts": {one["name"]: {"pretrain": None, **one} for one in STARTS},
        "order": ["scratch", "own"],
        "against": ["scratch"],
        "shares": [{"share": 0.5, "tag": "50"}, {"share": 1.0, "tag": "100"}],
    }
    write_json(tmp_path / LABELS, asked)
    return tmp_path, read_benchmark(tmp_path), asked


def cells(lines, *first):
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("|")]
    return next(row for row in rows if tuple(row[: len(first)]) == first)


def test_figures_and_differences_of_starts(stored):
    _, benchmark, asked = stored
    records = Records(benchmark.runs, benchmark.sites)
    shares = share_table(records, asked, "test.auc")
    assert cells(shares, "from scratch", "50 %")[2:4] == ["300", "0.700 (0.700 to 0.700)"]
    assert cells(shares, "pre-trained here", "100 %")[2:] == ["not run"] * 5
    # The made quality falls by half a unit a row: 0.6 less 0.7.
    gaps = difference_table(records, asked, "scratch", "test.auc")
    assert cells(gaps, "pre-trained here", "50 %")[2:7] == ["2", *["\u22120.100"] * 4]
    assert cells(gaps, "pre-trained here", "100 %")[2] == "0"


def test_the_page_and_its_picture_are_always_the_same(stored):
    out, _, _ = stored
    for name in ("one", "two"):
        write_label_page(out, out / name / "page.md", out / name / "pictures")
    page, again = ((out / name / "page.md").read_text() for name in ("one", "two"))
    assert page == again
    assert "own_100 not at all" in page
    pictures = [next((out / name / "pictures").glob("*.svg")).read_text() for name in ("one", "two")]
    assert pictures[0] == pictures[1]
    assert "50 %" in pictures[0]
