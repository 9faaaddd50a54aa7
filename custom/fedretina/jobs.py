"""Job folders of this package: one for a row, written from the table.

What is committed under `jobs/` is what `fedretina job write` writes: `make jobs` writes it anew. Such a folder has an
empty `custom` folder, with which FLARE runs it in the simulator and in a rehearsal. Hardened sites refuse that: for
them `fedretina job export` writes the production form (`fedretina.job_export`). Beside a committed job's
files stands `job.py`, which runs it through FLARE's recipes (`fedretina.recipes`); no federation is sent it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedretina.errors import DataError, SettingsError, StateError
from fedretina.kit.job_folder import (
    AGGREGATOR,
    CONFIGS,
    CONTROLLER,
    EXECUTOR,
    EXPERIMENT,
    FILTER,
    LEARNER,
    LEARNER_EXECUTOR,
    META,
    SCRIPT,
    SERVER_RUN,
)
from fedretina.rows import row
from fedretina.rows.recipes import recipe
from fedretina.settings.contrastive import ContrastiveSettings, MomentumSettings
from fedretina.settings.experiment import Experiment
from fedretina.storage import filled_folder, require_name, require_sites, write_text
from fedretina.yaml_file import parse_yaml, read_text

TASKS = ("prepare", "pretrain", "train", "sums", "validate", "tune", "calibrate", "curve", "finalise")
SITES = ("site-1", "site-2", "site-3", "site-4", "site-5")
# FLARE's sites give up after 60 s where the server's process of the job is slow to start, and take the job with them.
_PATIENCE_S = 300.0

_HEAD = """\
# {title}, at a size that two cores finish in {minutes} minutes{sizes}.
# Every setting, its range and its source: docs/settings.md. A run is new unless it is named (`run: NAME`).
name: {name}
row: {row}{recipe}
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
_SUMS = """\
images:
  image_size: 224
network:
  encoder: efficientnet_lite0   # it does not train
  weights: {source: package}    # ImageNet; from an installed package, never a download
training:
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
    "sums": "  - {{name: {name}, rounds: 1}}     # one message up, one down",
    "tuned": "  - {{name: {name}, rounds: 3, training: {{epochs: 2}}}}    # paper: 50 rounds of 3 epochs",
}

_WHOSE = {"fundus": "FedUAA's"}
_ROUNDS = {"oct": "paper: 50", "dermoscopy": "paper: 47", "heart_sound": "paper: 32", "activity": "paper: 10"}

_SCRIPT = """\
\"\"\"Runs the job in this folder in FLARE's simulator: docs/recipes.md. `fedretina job write` writes this file.

python job.py                              runs it; `fedretina show` then prints its table
python job.py --export --export-dir OUT    writes the job that FLARE is given into OUT

For another place to run, put PocEnv(num_clients=len(sites), clients=sites) or a ProdEnv where SimEnv(...) stands.
\"\"\"

from pathlib import Path

from nvflare.recipe import SimEnv

from fedretina.recipes import JobRecipe

if __name__ == "__main__":
    recipe = JobRecipe(Path(__file__).parent)
    sites = list(recipe.sites)
    env = SimEnv(clients=sites, num_threads=min(2, len(sites)), workspace_root="simulator_workspace")
    run = recipe.execute(env)
    print(f"FLARE's files: {run.get_result()}")
"""

APP = "app"
CALLED = "the experiment file"
_MARKER = """\
Empty on purpose. FLARE 2.9 refuses classes outside its allow-list unless the app has a `custom` folder; with it a job
runs in the simulator and in POC from a clean checkout. A production job has no such folder: there the allow-list of
each site names the package.
"""


def job_files(
    method: str,
    name: str = "",
    sites: Sequence[str] = SITES,
    learner: bool = False,
    settings: Mapping[str, Any] | str | None = None,
) -> dict[str, str]:
    """The files of a job that runs a row in the simulator and in POC, by path within its folder.

    Args:
        method: Name of the row.
        name: Name of the job; the row's by default.
        sites: Names of the sites.
        learner: Whether the sites run the trainer behind FLARE's ModelLearner, as one of its learners, instead of the
            executor of this package; the results are the same to the bit.
        settings: All settings of the experiment, where they are not those of the row's own job; they name the row. The
            text of an experiment file is taken as it stands, with its comments.

    Raises:
        SettingsError: No such row, settings that cannot be, a row that no federation can run, no site, or one that is
            named twice.
        RefusedError: A name cannot be used as a folder's.
    """
    words = parse_yaml(settings, CALLED) if isinstance(settings, str) else settings
    Experiment.resolve({"row": method} if words is None else words).require_federated()
    job = require_name(name or method, "job")
    app = ["server", *require_sites(sites)]
    meta = {"name": job, "resource_spec": {}, "min_clients": 1, "mandatory_clients": [], "deploy_map": {APP: app}}
    server, client = (f"{APP}/config/{config}" for config in CONFIGS)
    return {
        META: _text(meta),
        server: _text(_server()),
        client: _text(_client_of_learner() if learner else _client()),
        f"{APP}/config/{EXPERIMENT}": _settings_text(method, job, settings),
        f"{APP}/custom/README.md": _MARKER,
    }


def job_script() -> dict[str, str]:
    """The file that runs the job beside it through FLARE's recipes, as `job_files` gives its files."""
    return {SCRIPT: _SCRIPT}


def read_job(folder: Path) -> dict[str, str]:
    """The files of a job folder, as `job_files` gives them: without `job.py` and without hidden files.

    Raises:
        SettingsError: The folder is no job of this package, or a file cannot be read as text.
    """
    require_job(folder)
    found = {}
    for app in sorted(job_record(folder / META).get("deploy_map") or {}):
        for path in sorted((folder / app).rglob("*")):
            within = path.relative_to(folder)
            if path.is_file() and "__pycache__" not in within.parts and not path.name.startswith("."):
                found[within.as_posix()] = read_text(path, "a file of the job")
    return {META: read_text(folder / META, "the job's meta.json"), **found}


def _settings_text(method: str, job: str, settings: Mapping[str, Any] | str | None) -> str:
    if settings is None:
        return _experiment(method, job)
    return settings if isinstance(settings, str) else yaml.safe_dump(dict(settings), sort_keys=False)


def settings_of_row(method: str, recipe: str | None = None, name: str = "") -> str:
    """The experiment file that the job of a row has.

    Args:
        method: Name of the row.
        recipe: Name of a recipe, which then says how to train; None for the row's own job.
        name: Name of the job; the row's by default.

    Raises:
        SettingsError: No such row, or no such recipe.
        RefusedError: The name cannot be a job's.
    """
    return _experiment(method, require_name(name or method, "job"), recipe)


def write_job(folder: Path, files: dict[str, str], replace: bool = False) -> None:
    """Write a job's files.

    Args:
        folder: The job's folder.
        files: Texts by path within it, from `job_files`.
        replace: Whether the files of a job that is there already are written over, each whole or not at all; what else
            its folder holds stays.

    Raises:
        SettingsError: The folder is there already, is no job's with `replace`, or cannot be written.
    """
    try:
        if replace and folder.exists():
            if not (folder / META).is_file():
                raise SettingsError(f"{folder.name} is there and no job: it has no {META}. Choose another --out.")
            for path, text in files.items():
                write_text(folder / path, text)
            return
        if folder.exists():
            raise SettingsError(f"{folder.name} is there already: choose another --out, or remove it first.")
        with filled_folder(folder, "the job") as half:
            for path, text in files.items():
                write_text(half / path, text)
    except (DataError, StateError) as error:
        raise SettingsError(f"{folder.name} cannot be written: choose another --out. ({error})") from error


def _experiment(method: str, name: str, by: str | None = None) -> str:
    found = Experiment.resolve({"row": method})
    phases = []
    for phase in found.phases:
        own = phase.training is not None and not phase.training.stretches  # stretches have epochs of their own
        kind = "tuned" if phase.task == "train" and own else phase.task
        rounds = _ROUNDS.get(found.images.modality, "FedUAA: 100")
        phases.append(_PHASES[kind].format(name=phase.name, rounds=rounds, contrastive=_keys(phase.contrastive)))
    bodies = {"fundus": _FUNDUS, "oct": _OCT, **_OF_TASKS}
    whose = _WHOSE.get(found.images.modality, "the paper's")
    minutes = "about three" if len(phases) == 1 else "about five"
    sizes = f"; {whose} sizes stand behind each value"
    trains = any(phase.task != "sums" for phase in found.phases)
    if not trains:
        minutes, sizes = "a few", ""
    blanks = {"title": row(method).title, "minutes": minutes, "sizes": sizes, "name": name, "row": method}
    body = bodies[found.images.modality] if trains else _SUMS
    text = _HEAD.format(**blanks, phases="\n".join(phases), recipe=f"\nrecipe: {by}" if by else "") + body
    return _without(text, recipe(by).settings) if by else text


def _without(text: str, fixed: Mapping[str, Any]) -> str:
    """The lines of an experiment file but for settings that a recipe fixes: what stands in a job wins over its recipe.

    The rate of a job that shows a row in three rounds of SGD would be fifty times the recipe's, under Adam.
    """
    kept, section = [], ""
    for line in text.splitlines(keepends=True):
        key = line.partition(":")[0]
        if key == key.strip():
            section = key
        elif key.strip() in fixed.get(section, {}):
            continue
        kept.append(line)
    return "".join(kept)


def _keys(settings: ContrastiveSettings | None) -> str:
    """What a short run changes of a key network that has its batches split; nothing for other methods."""
    if not isinstance(settings, MomentumSettings) or settings.key_bn != "split":
        return ""
    return "    contrastive: {momentum: 0.99, splits: 2}     # paper: 0.999; splits not said\n"


def _filters(direction: str, **more: object) -> list[dict[str, object]]:
    return [{"tasks": [*TASKS], "filters": [{"path": FILTER, "args": {"direction": direction, **more}}]}]


def _client() -> dict[str, object]:
    """The site's end: the filter reads every order, and every answer before it may leave."""
    return {
        "format_version": 2,
        "max_runner_sync_timeout": _PATIENCE_S,
        "executors": [{"tasks": [*TASKS], "executor": {"path": EXECUTOR, "args": {}}}],
        "task_data_filters": _filters("order"),
        "task_result_filters": _filters("answer", ledger=True),
        "components": [],
    }


def _client_of_learner() -> dict[str, object]:
    """The same with FLARE's executor for learners, which must be told for each task that it is one of training."""
    executors = []
    for task in TASKS:
        args = {"learner_id": "learner", "train_task": task, "validate_task": "not_used"}
        executors.append({"tasks": [task], "executor": {"path": LEARNER_EXECUTOR, "args": args}})
    return {**_client(), "executors": executors, "components": [{"id": "learner", "path": LEARNER, "args": {}}]}


def _server() -> dict[str, object]:
    def workflow(name: str, tasks: Sequence[str]) -> dict[str, object]:
        args = {"tasks": [*tasks], "budget_s": 3600, "grace_s": 5.0, "repeats": 2}
        return {"id": name, "path": CONTROLLER, "args": args}

    return {
        "format_version": 2,
        "server": {"task_request_interval": 0.5},
        "task_data_filters": _filters("order"),
        "task_result_filters": [],
        "components": [
            {"id": "run", "path": SERVER_RUN, "args": {}},
            {"id": "aggregator", "path": AGGREGATOR, "args": {}},
        ],
        "workflows": [workflow("train", TASKS[:4]), workflow("finalise", TASKS[4:])],
    }


def _text(record: dict[str, object]) -> str:
    return json.dumps(record, indent=2) + "\n"


def require_job(job: Path) -> None:
    """Refuse a folder that holds no job of this package.

    Raises:
        SettingsError: It holds none.
    """
    missing = [name for name in (*CONFIGS, EXPERIMENT) if not (job / APP / "config" / name).is_file()]
    if missing or not (job / META).is_file():
        raise SettingsError(f"{job} is no job of this package: it lacks {[*missing, META][0]}.")


def job_record(path: Path) -> dict[str, Any]:
    """Read a JSON file of a job.

    Raises:
        SettingsError: It cannot be read, or holds no object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path} cannot be read ({error}): mend the job.") from error
    if not isinstance(found, dict):
        raise SettingsError(f"{path} holds no JSON object: mend the job.")
    return found
