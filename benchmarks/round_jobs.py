"""The two job folders of `round_overhead`: ours, as the jobs of this package are, and FLARE's own FedAvg."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import ROOT
from benchmarks.resnet50 import GRADES, experiment_words

POLL_S = 0.5
CHECK_S = 0.2


def write_our_job(folder: Path, rounds: int, encoder: str = "resnet50") -> Path:
    """Write the job `jobs/feduaa` with the echo in place of its executor and a network that travels whole."""
    template = ROOT / "jobs" / "feduaa" / "app" / "config"
    server = json.loads((template / "config_fed_server.json").read_text(encoding="utf-8"))
    client = json.loads((template / "config_fed_client.json").read_text(encoding="utf-8"))
    server["server"] = {"task_request_interval": POLL_S}
    for workflow in server["workflows"]:
        workflow["args"]["task_check_period"] = CHECK_S
    client["executors"][0]["executor"] = {"path": "benchmarks.echo.EchoExecutor", "args": {}}
    config = _write(folder, server, client)
    (config / "experiment.yaml").write_text(yaml.safe_dump(experiment_words(rounds, encoder)), encoding="utf-8")
    return folder


def write_site_file(path: Path) -> Path:
    """Write the settings of every site: a phantom hospital with a few images and a thousand grades.

    A site's own policy keeps the head at home unless the site says otherwise; these phantoms do, so that all of the
    network travels.
    """
    scheme = {"grades": [f"grade {number}" for number in range(GRADES)]}
    data = {"scheme": scheme, "limit": {"train": 16, "val": 8, "test": 8}}
    words = {"data": data, "policy": {"kinds": ["encoder", "norm", "statistic", "head"]}}
    path.write_text(yaml.safe_dump(words), encoding="utf-8")
    return path


def write_flare_job(folder: Path, rounds: int, sites: int) -> Path:
    """Write FLARE's FedAvg: ScatterAndGather, its in-time aggregator and its persistor."""
    server = {
        "format_version": 2,
        "server": {"task_request_interval": POLL_S},
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [
            _component(
                "persistor",
                "nvflare.app_opt.pt.file_model_persistor.PTFileModelPersistor",
                model={"path": "benchmarks.echo.ReferenceNet", "args": {}},
            ),
            _component(
                "shareable_generator",
                "nvflare.app_common.shareablegenerators.full_model_shareable_generator.FullModelShareableGenerator",
            ),
            _component(
                "aggregator",
                "nvflare.app_common.aggregators.intime_accumulate_model_aggregator.InTimeAccumulateWeightedAggregator",
                expected_data_kind="WEIGHTS",
            ),
        ],
        "workflows": [
            _component(
                "train",
                "nvflare.app_common.workflows.scatter_and_gather.ScatterAndGather",
                min_clients=sites,
                num_rounds=rounds,
                wait_time_after_min_received=0,
                aggregator_id="aggregator",
                persistor_id="persistor",
                shareable_generator_id="shareable_generator",
                train_task_name="train",
                train_timeout=0,
                task_check_period=CHECK_S,
            )
        ],
    }
    executor = {"path": "benchmarks.echo.PlainExecutor", "args": {}}
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["train"], "executor": executor}],
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
    }
    _write(folder, server, client)
    return folder


def _component(name: str, path: str, **arguments: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": arguments}


def _write(folder: Path, server: dict[str, Any], client: dict[str, Any]) -> Path:
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    (folder / "app" / "custom").mkdir()  # FLARE 2.9 refuses other classes than its own in an app without it
    meta = {"name": folder.name, "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    (config / "config_fed_server.json").write_text(json.dumps(server, indent=1), encoding="utf-8")
    (config / "config_fed_client.json").write_text(json.dumps(client, indent=1), encoding="utf-8")
    return config
