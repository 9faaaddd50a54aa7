import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.loop import run_loop
from fedretina.rows import ROWS

JOBS = Path(__file__).resolve().parents[1] / "jobs"


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_methods_lists_the_whole_table():
    result = call("methods", "--encoder", "resnet18")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(ROWS)


def test_methods_counts_the_bytes_of_each_row():
    listed = json.loads(call("methods", "--encoder", "resnet50", "--sites", 3, "--json").output)
    found = {entry["name"]: entry for entry in listed}
    assert found["singleset"]["up"] == 0
    # ResNet-50 without its classifier: 23,454,912 weights outside BatchNorm, 53,120 in its scales and shifts, twice
    # that in running statistics; four bytes each.
    assert found["fedbn"]["up"] == 4 * 23_454_912
    assert found["fedavg"]["up"] == 4 * (23_454_912 + 2 * 53_120)
    assert found["scaffold"]["up"] == 4 * (2 * (23_454_912 + 53_120) + 53_120)
    assert found["feduaa_scaffold"]["up"] == 2 * found["feduaa"]["up"]
    assert found["fedap"]["once"] == 4 * 53_120
    assert found["feduaa"]["federation"] == 2 * 3 * found["feduaa"]["up"]
    assert found["fedrep"]["phases"] == ["train (head x5, then encoder x1)", "validate", "finalise"]


def test_methods_leave_out_what_an_encoder_does_not_fit():
    result = call("methods", "--encoder", "vit_small", "--json")
    # No BatchNorm to compare, and samples that are no whole number of patches.
    unfit = ("fedap", "fedee_fedap", "fedee_dermoscopy", "fedee_activity")
    assert [entry["name"] for entry in json.loads(result.output)] == [name for name in ROWS if name not in unfit]
    assert f"by name: {', '.join(unfit)}." in call("methods", "--encoder", "vit_small").output
    asked = call("methods", "fedap", "--encoder", "vit_small")
    assert asked.exit_code == 2
    assert "has no BatchNorm" in asked.output
    assert call("methods", "--encoder", "vgg16").exit_code == 2


def test_one_method_in_full_and_an_unknown_one():
    text = call("methods", "scaffold", "--encoder", "resnet18").output
    assert "Karimireddy" in text
    assert "control" in text
    wrong = call("methods", "no_such_row")
    assert wrong.exit_code == 2
    assert "there is no row 'no_such_row'" in wrong.output


def test_show_prints_the_latest_run_and_where_it_lies(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    results = run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path / "runs", "first")
    result = call("show", "--root", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert "run first, model of train-0000" in result.output
    assert "synthetic images (phantom hospitals): site-1, site-2" in result.output
    row = next(line for line in result.output.splitlines() if line.strip().startswith("site-2"))
    cells = row.split()
    figures = results["sites"]["site-2"]
    assert cells[1] == "4"
    assert cells[3] == f"{figures['test_auc']:.3f}"
    assert cells[4] == f"{figures['test_accuracy']:.3f}"
    assert cells[5] == f"{figures['theta']:.3f}"
    assert cells[6] == f"{figures['weight']:.3f}"
    assert str(tmp_path / "runs" / "first") in result.output


def test_show_without_a_run_says_how_to_get_one(tmp_path):
    result = call("show", "--root", tmp_path)
    assert result.exit_code == 2
    assert "no finished run" in result.output


@pytest.mark.parametrize("job", ["feduaa", "feduaa_learner"])
def test_partition_of_the_committed_jobs(job):
    result = call("partition", JOBS / job / "app/config/experiment.yaml", "--grades", 6)
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert "travels" in lines["encoder"]
    for kind in ("norm", "statistic", "counter", "head"):
        assert "stays" in lines[kind]


def test_bad_settings_end_with_a_sentence(tmp_path):
    (tmp_path / "e.yaml").write_text("row: nothing\n")
    result = call("partition", tmp_path / "e.yaml")
    assert result.exit_code == 2
    assert "there is no row 'nothing'" in result.output
