"""What a job hands to the admin side."""

import pytest

from fedretina.errors import StateError
from fedretina.flare.results_upload import publish, published, why_stopped
from fedretina.loop import run_loop


@pytest.fixture
def run_folder(tiny, phantoms, tmp_path):
    experiment = tiny(phases=[{"name": "train", "rounds": 1}])
    run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path / "runs", "r")
    return tmp_path / "runs" / "r" / "server"


def test_results_and_table_and_nothing_else(run_folder, tmp_path):
    publish(run_folder, tmp_path / "workspace")
    folder = published(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"results.json", "report.json", "table.txt"}
    assert (folder / "results.json").read_bytes() == (run_folder / "results.json").read_bytes()
    assert "run r, model of train-0000" in (folder / "table.txt").read_text()
    assert why_stopped(tmp_path) is None
    assert list(run_folder.glob("*.safetensors"))  # a model is there, and stayed


def test_a_job_that_stops_says_why(tmp_path):
    publish(None, tmp_path / "workspace", "below the quorum.")
    assert why_stopped(tmp_path) == "below the quorum."
    (tmp_path / "run").mkdir()
    publish(tmp_path / "run", tmp_path / "workspace")  # a run without results publishes none
    assert {path.name for path in published(tmp_path).iterdir()} == {"stopped.json"}


def test_a_folder_that_cannot_be_written_is_a_sentence(run_folder, tmp_path):
    (tmp_path / "workspace").write_text("a file")
    with pytest.raises(StateError, match="job's folder"):
        publish(run_folder, tmp_path / "workspace")
