"""A FLARE job folder for a row: what is committed under `jobs/` and what `fedretina job write` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedretina.errors import DataError, SettingsError, StateError
from fedretina.exchange.stamp import require_name, require_sites
from fedretina.rows import row
from fedretina.settings.contrastive import ContrastiveSettings, MomentumSettings
from fedretina.settings.experiment import Experiment
from fedretina.storage import filled_folder, write_text

TASKS = ("prepare", "pretrain", "train", "validate", "tune", "calibrate", "finalise")
SITES = ("site-1", "site-2", "site-3", "site-4", "site-5")
_FILTER = "fedretina.flare.whitelist_filter.WhitelistFilter"
_CONTROLLER = "fedretina.flare.controller.RoundController"
# FLARE's sites give up after 60 s where the server's process of the job is slow to start, and take the job with them.
_PATIENCE_S = 300.0

_HEAD = """\
# {title}, at a size that two cores finish in {minutes} minutes; {whose} sizes stand behind each value.
# Every setting, its range and its source: docs/settings.md. A run is new unless it is named (`run: NAME`).
name: {name}
row: {row}
seed: 1
quorum: 1                       # smallest number of accepted updates that makes a round
phases:
{phases}
"""
_FUNDUS = """\
images:
  image_size: 64                # FedUAA: 256
network:
  encoder: efficientnet_lite0   # FedUAA: resnet50
  weights: {source: package}    # ImageNet, as in the paper; from an installed package, never a download
training:
  epochs: 1                     # FedUAA: 1
  batch_size: 16                # FedUAA: 32
  learning_rate: 0.05           # FedUAA: 0.01
  threads: 2
phantom_images: 160             # training images of an average phantom site
"""
_OCT = """\
images:
  image_size: 64                # paper: not said; its operations fit 380
network:
  encoder: efficientnet_lite0   # paper: efficientnet_b4
  weights: {source: package}    # ImageNet, from an installed package; the paper does not say where it starts
training:
  batch_size: 16                # paper: 64, then 32
  threads: 2
phantom_images: 160             # training images of an average phantom site
"""
_OF_TASKS = {
    "dermoscopy": """\
images:
  image_size: 64                # paper: 200
network:
  weights: {source: none}       # paper: ImageNet; give a file with its sha256
training:
  epochs: 2                     # paper: 20
  batch_size: 16                # paper: 64
  threads: 2
phantom_images: 160             # training pictures of an average phantom site
""",
    "heart_sound": """\
images:
  image_size: 64                # paper: spectrograms of 101 x 99
training:
  epochs: 2                     # paper: 20
  batch_size: 16                # paper: 64
  threads: 2
phantom_images: 160             # training recordings of an average phantom site
""",
    "activity": """\
images:
  length: 1000                  # paper: 10 s at 100 Hz
training:
  epochs: 2                     # paper: 20
  batch_size: 16                # paper: 32
  threads: 2
phantom_images: 160             # training windows of an average phantom site
""",
}
_PHASES = {
    # With few steps a momentum of 0.999 leaves the keys where they began (`_keys`), and small batches want a smaller
    # rate.
    "pretrain": """\
  - name: {name}
    rounds: 2                   # paper: 100
{contrastive}    training: {{epochs: 1, learning_rate: 0.01}}   # paper: 5 epochs, 0.03 at batches of 64""",
    "train": "  - {{name: {name}, rounds: 3}}    # {rounds}",
    "tuned": "  - {{name: {name}, rounds: 3, training: {{epochs: 2}}}}    # paper: 50 rounds of 3 epochs",
}

_ROUNDS = {"dermoscopy": "paper: 47", "heart_sound": "paper: 32", "activity": "paper: 10"}

_MARKER = """\
Empty on purpose. FLARE 2.9 refuses classes outside its allow-list unless the app has a `custom` folder; with it a job
runs in the simulator and in POC from a clean checkout. A production job has no such folder: there the allow-list of
each site names the package.
"""


def job_files(method: str, name: str = "", sites: Sequence[str] = SITES) -> dict[str, str]:
    """The files of a job that runs a row in the simulator and in POC, by path within its folder.

    Args:
        method: Name of the row.
        name: Name of the job; the row's by default.
        sites: Names of the sites.

    Raises:
        SettingsError: No such row, one that no federation can run, no site, or one that is named twice.
        RefusedError: A name cannot be used as a folder's.
    """
    Experiment.resolve({"row": method}).require_federated()
    job = require_name(name or method, "job")
    app = ["server", *require_sites(sites)]
    meta = {"name": job, "resource_spec": {}, "min_clients": 1, "mandatory_clients": [], "deploy_map": {"app": app}}
    return {
        "meta.json": _text(meta),
        "app/config/config_fed_client.json": _text(_client()),
        "app/config/config_fed_server.json": _text(_server()),
        "app/config/experiment.yaml": _experiment(method, job),
        "app/custom/README.md": _MARKER,
    }


def write_job(folder: Path, files: dict[str, str]) -> None:
    """Write a job's files.

    Raises:
        SettingsError: The folder is there already, or cannot be written.
    """
    if folder.exists():
        raise SettingsError(f"{folder.name} is there already: choose another --out, or remove it first.")
    try:
        with filled_folder(folder, "the job") as half:
            for path, text in files.items():
                write_text(half / path, text)
    except (DataError, StateError) as error:
        raise SettingsError(f"{folder.name} cannot be written: choose another --out. ({error})") from error


def _experiment(method: str, name: str) -> str:
    found = Experiment.resolve({"row": method})
    phases = []
    for phase in found.phases:
        kind = "pretrain" if phase.contrastive is not None else "train" if phase.training is None else "tuned"
        rounds = _ROUNDS.get(found.images.modality, "FedUAA: 100")
        phases.append(_PHASES[kind].format(name=phase.name, rounds=rounds, contrastive=_keys(phase.contrastive)))
    bodies = {"fundus": _FUNDUS, "oct": _OCT, **_OF_TASKS}
    whose = "FedUAA's" if found.images.modality == "fundus" else "the paper's"
    minutes = "about three" if len(phases) == 1 else "about five"
    words = {"title": row(method).title, "minutes": minutes, "whose": whose, "name": name, "row": method}
    return _HEAD.format(**words, phases="\n".join(phases)) + bodies[found.images.modality]


def _keys(settings: ContrastiveSettings | None) -> str:
    """What a short run changes of a key network that has its batches split; nothing for other methods."""
    if not isinstance(settings, MomentumSettings) or settings.key_bn != "split":
        return ""
    return "    contrastive: {momentum: 0.99, splits: 2}     # paper: 0.999; splits not said\n"


def _filters(direction: str, **more: object) -> list[dict[str, object]]:
    return [{"tasks": [*TASKS], "filters": [{"path": _FILTER, "args": {"direction": direction, **more}}]}]


def _client() -> dict[str, object]:
    executor = {"path": "fedretina.flare.executor.TrainerExecutor", "args": {}}
    return {
        "format_version": 2,
        "max_runner_sync_timeout": _PATIENCE_S,
        "executors": [{"tasks": [*TASKS], "executor": executor}],
        "task_data_filters": _filters("order"),
        "task_result_filters": _filters("answer", ledger=True),
        "components": [],
    }


def _server() -> dict[str, object]:
    def workflow(name: str, tasks: Sequence[str]) -> dict[str, object]:
        args = {"tasks": [*tasks], "budget_s": 3600, "grace_s": 5.0, "repeats": 2}
        return {"id": name, "path": _CONTROLLER, "args": args}

    return {
        "format_version": 2,
        "server": {"task_request_interval": 0.5},
        "task_data_filters": _filters("order"),
        "task_result_filters": [],
        "components": [
            {"id": "run", "path": "fedretina.flare.server_run.ServerRun", "args": {}},
            {"id": "aggregator", "path": "fedretina.flare.aggregator.SpoolAggregator", "args": {}},
        ],
        "workflows": [workflow("train", TASKS[:3]), workflow("finalise", TASKS[3:])],
    }


def _text(record: dict[str, object]) -> str:
    return json.dumps(record, indent=2) + "\n"
