"""The committed job folders: they name only classes that exist, and are marked for the simulator."""

import importlib
import json
from pathlib import Path

import pytest

from fedretina.errors import SettingsError
from fedretina.job_writer import job_files, write_job
from fedretina.rows import ROWS
from fedretina.settings.experiment import Experiment

JOBS = sorted((Path(__file__).resolve().parents[1] / "jobs").iterdir())


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
    tasks = {"prepare", "pretrain", "train", "validate", "tune", "calibrate", "finalise"}
    for end, chain in (
        ("server", "task_data_filters"),
        ("client", "task_data_filters"),
        ("client", "task_result_filters"),
    ):
        assert {task for entry in config[end][chain] for task in entry["tasks"]} == tasks
    kept = [f["args"] for entry in config["client"]["task_result_filters"] for f in entry["filters"]]
    assert kept == [{"direction": "answer", "ledger": True}]


def test_committed_jobs_are_what_the_table_writes():
    written = {job.name for job in JOBS} - {"feduaa_learner"}
    assert len(written) >= 8
    for name in sorted(written):
        folder = JOBS[0].parent / name
        found = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
        assert found == job_files(name), f"run `fedretina job write {name}` again"


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
