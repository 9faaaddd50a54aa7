"""The committed job folders: they name only classes that exist, and are marked for the simulator."""

import importlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.errors import SettingsError
from fedretina.jobs import job_files, write_job
from fedretina.rows import ROWS
from fedretina.settings.experiment import Experiment

JOBS = sorted((Path(__file__).resolve().parents[2] / "jobs").iterdir())


def paths(node):
    if isinstance(node, dict):
        yield from ([node["path"]] if "path" in node else [])
        for value in node.values():
            yield from paths(value)
    elif isinstance(node, list):
        for value in node:
            yield from paths(value)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_is_whole(job):
    meta = json.loads((job / "meta.json").read_text())
    assert meta["name"] == job.name
    for app, targets in meta["deploy_map"].items():
        assert "server" in targets
        assert (job / app / "custom").is_dir()
        for end in ("server", "client"):
            config = json.loads((job / app / "config" / f"config_fed_{end}.json").read_text())
            for path in paths(config):
                module, name = path.rsplit(".", 1)
                assert hasattr(importlib.import_module(module), name), path
        Experiment.load(job / app / "config" / "experiment.yaml")


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_filters_stand_at_both_ends_for_every_task(job):
    config = {
        end: json.loads((job / "app" / "config" / f"config_fed_{end}.json").read_text()) for end in ("server", "client")
    }
    tasks = {"prepare", "pretrain", "train", "sums", "validate", "tune", "calibrate", "curve", "finalise"}
    for end, chain in (
        ("server", "task_data_filters"),
        ("client", "task_data_filters"),
        ("client", "task_result_filters"),
    ):
        assert {task for entry in config[end][chain] for task in entry["tasks"]} == tasks
    kept = [f["args"] for entry in config["client"]["task_result_filters"] for f in entry["filters"]]
    assert kept == [{"direction": "answer", "ledger": True}]


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_committed_job_is_what_make_jobs_writes(job, tmp_path):
    learner = job.name == "feduaa_learner"
    words = ("feduaa", "--name", job.name, "--learner") if learner else (job.name,)
    written = tmp_path / "jobs" / job.name
    for more in ((), ("--replace",)):
        result = CliRunner().invoke(main, ["job", "write", *words, "--out", str(written), *more])
        assert result.exit_code == 0, result.output
        assert files_of(job) == files_of(written), "run `make jobs`"
        for path in written.rglob("*.*"):
            path.write_text("stale")


def test_a_job_for_any_row_loads_and_a_folder_is_never_overwritten(tmp_path):
    for name in set(ROWS) - {"centralised", "oct_centralised"}:
        write_job(tmp_path / name, job_files(name, sites=["a", "b"]))
        assert Experiment.load(tmp_path / name / "app/config/experiment.yaml").row == name
        assert json.loads((tmp_path / name / "meta.json").read_text())["deploy_map"] == {"app": ["server", "a", "b"]}
    with pytest.raises(SettingsError, match="there already"):
        write_job(tmp_path / "feduaa", job_files("feduaa"))
    with pytest.raises(SettingsError, match="no row"):
        job_files("no_such_row")
    with pytest.raises(SettingsError, match="images in one place"):
        job_files("centralised")
    with pytest.raises(SettingsError, match="no site is named"):
        job_files("feduaa", sites=[])
    (tmp_path / "mine").mkdir()
    with pytest.raises(SettingsError, match="is there and no job"):
        write_job(tmp_path / "mine", job_files("feduaa"), replace=True)
    assert not list((tmp_path / "mine").iterdir())
