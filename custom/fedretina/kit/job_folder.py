"""What a job may hold at a hardened end: the classes it may name, the files of its apps, and nothing that is looked up.

One list of classes serves jobs, startup kits, the site's filter, exported jobs and their tests.

FLARE reads a job's configuration as HOCON or YAML where the JSON is missing, and these include files, addresses and
environment variables of the machine that reads them. In JSON it fills in variables between braces, which hold folders,
addresses and the environment. It finds some of its own files (`resources.json`, `comm_config.json`, `log_config.json`)
by walking its workspace, in which jobs lie too. So a job may hold what a job of this package needs, and no more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedretina.told import one_line

AGGREGATOR = "fedretina.flare.aggregator.SpoolAggregator"
CONTROLLER = "fedretina.flare.controller.RoundController"
EXECUTOR = "fedretina.flare.executor.TrainerExecutor"
FILTER = "fedretina.flare.whitelist_filter.WhitelistFilter"
LEARNER = "fedretina.flare.learner.TrainerLearner"
LEARNER_EXECUTOR = "nvflare.app_common.executors.model_learner_executor.ModelLearnerExecutor"
SERVER_RUN = "fedretina.flare.server_run.ServerRun"
ALLOWED_CLASSES = (AGGREGATOR, CONTROLLER, EXECUTOR, FILTER, LEARNER, LEARNER_EXECUTOR, SERVER_RUN)
"""Each by its full name: a prefix would let a job build anything that a package holds."""
RESULT_FILTERS = frozenset({FILTER})
"""Filters that a job may put behind a site's own: they pass or refuse, and never add."""
_NAMES = ("path", "class_path", "name")
CONFIGS = ("config_fed_server.json", "config_fed_client.json")
"""The job's configuration for FLARE."""
EXPERIMENT = "experiment.yaml"
META = "meta.json"
"""What a job holds beside its apps."""
GPUS, GPU_MEMORY = "num_of_gpus", "mem_per_gpu_in_GiB"
"""What a job's meta asks of a site (`resource_spec`), and what a site's kit offers, in the words of FLARE's manager."""
SCRIPT = "job.py"
"""What may stand beside a job's files where it is kept, to run it from there; it is no part of the job."""
SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")
"""What FLARE itself lays into every folder of a signed job."""
FOLDERS = ("", "config/")
FILES = frozenset({f"config/{name}" for name in (*CONFIGS, EXPERIMENT)}) | {
    f"{folder}{name}" for folder in FOLDERS for name in SIGNATURES
}
"""Every file that an app may hold, from the app's folder on."""
LARGEST = 2**20
"""Bytes that one of them may have."""
_SHOWN = 100


def head_of(path: Path) -> bytes:
    """What `refusal` looks at of a file: all of it, or one byte more than it may have."""
    with open(path, "rb") as handle:
        return handle.read(LARGEST + 1)


def classes_named(config: Any) -> Iterator[str]:
    """List every class that a job's configuration asks FLARE to build, however deep.

    FLARE may take any object with `path`, `class_path` or `name` for a component, so each such word counts.
    """
    if isinstance(config, dict):
        yield from (config[key] for key in _NAMES if isinstance(config.get(key), str))
        for value in config.values():
            yield from classes_named(value)
    elif isinstance(config, list):
        for value in config:
            yield from classes_named(value)


def refusal(files: Mapping[str, bytes]) -> str | None:
    """Say why an app is not taken; None where it may be.

    The sentence goes to the server and to everyone who may look at jobs: it names what the job itself holds and
    nothing of the machine that refuses it.

    Args:
        files: The content of every file of the app by its name from the app's folder on, with `/` between folders.
    """
    for name in sorted(files, key=lambda name: (name.endswith(SIGNATURES), name)):  # FLARE's own are the least telling
        if name.startswith("custom/"):
            return (
                f"BYOC not permitted: the job brings {one_line(name, _SHOWN)}, and no code of a job is taken: send "
                "what `fedretina job export` writes."
            )
        if name not in FILES:
            return (
                f"a job holds {', '.join(sorted(FILES - _signatures()))} and nothing else, but this one has "
                f"{one_line(name, _SHOWN)}: send what `fedretina job export` writes."
            )
        if len(files[name]) > LARGEST:
            return f"{name} of the job is larger than {LARGEST} bytes: send what `fedretina job export` writes."
    for name in CONFIGS:
        if f"config/{name}" not in files:
            return f"the job lacks {name}, and no other format is read: send what `fedretina job export` writes."
        fault = _config_fault(name, files[f"config/{name}"])
        if fault:
            return fault
    return None


def _signatures() -> frozenset[str]:
    return frozenset(f"{folder}{name}" for folder in FOLDERS for name in SIGNATURES)


def _config_fault(name: str, content: bytes) -> str | None:
    try:
        config = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return f"{name} of the job is no JSON: send what `fedretina job export` writes."
    if not isinstance(config, dict):
        return f"{name} of the job holds no JSON object: send what `fedretina job export` writes."
    if any("{" in text or "}" in text for text in _texts(config)):
        # FLARE would put the site's folders, its environment or the job's own variables there.
        return f"{name} of the job holds a variable in braces, and nothing in a job is looked up: write the value."
    if any(_claims_scope(part) for part in _objects(config)):
        return f"{name} of the job has a filter that claims the site's scope: leave `scope` out, it is the site's own."
    return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(part)


def _claims_scope(part: Mapping[str, Any]) -> bool:
    arguments = part.get("args")
    names = (part.get(key) for key in ("path", "class_path", "name"))
    return FILTER in names and isinstance(arguments, dict) and bool(arguments.get("scope"))
