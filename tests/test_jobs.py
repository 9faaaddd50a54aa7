"""The committed job folders: they name only classes that exist, and are marked for the simulator."""

import importlib
import json
from pathlib import Path

import pytest

from fedretina.experiment import Experiment

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
    tasks = {"prepare", "train", "validate", "tune", "finalise"}
    for end, chain in (
        ("server", "task_data_filters"),
        ("client", "task_data_filters"),
        ("client", "task_result_filters"),
    ):
        assert {task for entry in config[end][chain] for task in entry["tasks"]} == tasks
    kept = [f["args"] for entry in config["client"]["task_result_filters"] for f in entry["filters"]]
    assert kept == [{"direction": "answer", "ledger": True}]
