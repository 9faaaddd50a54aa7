"""FLARE's store of jobs on the server's disk, for jobs that a server's crash left as running for ever.

FLARE 2.9 never takes such a job up again, and its own commands can neither abort, delete nor download it. All that
is wrong is one word in the job's meta.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from fedretina.errors import AdminError, NotFoundError
from fedretina.storage import read_json, write_json

ABANDONED = "FINISHED:ABANDONED"
"""FLARE's word for a job that nobody will finish."""
_BEGUN = ("DISPATCHED", "RUNNING")
_STORE_VARIABLE = "NVFL_JOB_STORE_ROOT"
_MANAGER = "job_manager"
_FLARE = "nvflare.private.fed.app."
_SERVER = f"{_FLARE}server.server_train"


class StoredJob(NamedTuple):
    """A job in the store that FLARE takes for running.

    Attributes:
        path: Its meta on disk.
        id: FLARE's id.
        name: Name of the job: of its run, where it was submitted under one.
        status: FLARE's word.
        begun: When it began, in seconds since 1970; None where that is not noted.
    """

    path: Path
    id: str
    name: str
    status: str
    begun: float | None


def when_begun(meta: Mapping[str, Any]) -> float | None:
    """When the server began a job, in seconds since 1970; None before that."""
    start, scheduled = meta.get("start_time"), meta.get("last_schedule_time")
    if start:
        return datetime.fromisoformat(start).timestamp()
    return None if scheduled is None else float(scheduled)


def job_store(kit: Path) -> Path:
    """Where the server of a startup kit keeps its jobs: the environment, else the kit's settings.

    Raises:
        NotFoundError: The folder is no server's startup kit, or has no store yet.
        AdminError: The kit's settings cannot be read.
    """
    if not (kit / "startup" / "fed_server.json").is_file():
        raise NotFoundError(f"{kit} is no server's startup kit: it has no startup/fed_server.json.")
    store = os.environ.get(_STORE_VARIABLE) or _configured(kit)
    if not Path(store).is_dir():
        raise NotFoundError(f"the store of jobs {store} is not there: this server has had no job, or runs elsewhere.")
    return Path(store)


def begun_jobs(store: Path) -> list[StoredJob]:
    """The jobs that FLARE takes for running, the oldest first."""
    found = [_stored(path) for path in sorted(store.glob("*/meta"))]
    return sorted((job for job in found if job.status in _BEGUN), key=lambda job: job.begun or 0.0)


def obstacle(job: StoredJob, kit: Path) -> str | None:
    """Why a job must not be touched: something still runs it, or may. None when it is provably lost.

    It is lost when no process of this host names it, and the server is down or was started after the job began: a
    server takes up no job that it has not begun itself.
    """
    running = [process for process in _processes() if any(_FLARE in word for word in process.arguments)]
    for process in running:
        if job.id in process.arguments:
            return f"process {process.pid} still runs it: wait half a minute, or end that process."
    servers = [process for process in running if _serves(process.arguments, kit.resolve())]
    for process in servers:
        if job.begun is None or process.started <= job.begun:
            return f"the server that began it still runs (process {process.pid}): use `nvflare job abort {job.id}`."
    target = _target(kit)
    if not servers and _answers(target):
        return f"something answers at {target}, and it is not known when it was started: stop the server first."
    return None


def abandon(job: StoredJob) -> None:
    """Write `FINISHED:ABANDONED` as the job's status; nothing else is changed.

    Raises:
        StateError: The disk is full or not writable; the old file is whole.
    """
    write_json(job.path, {**read_json(job.path), "status": ABANDONED})


class _Process(NamedTuple):
    pid: int
    arguments: list[str]
    started: float


def _processes() -> Iterator[_Process]:
    for process in psutil.process_iter(["pid", "cmdline", "create_time"]):
        if process.info["cmdline"]:
            yield _Process(process.info["pid"], process.info["cmdline"], process.info["create_time"])


def _serves(arguments: list[str], kit: Path) -> bool:
    named = any(Path(word).resolve() == kit for word in arguments if word.startswith(("/", ".")))
    return named and any(_SERVER in word for word in arguments)


def _target(kit: Path) -> str:
    try:
        raw = json.loads((kit / "startup" / "fed_server.json").read_text(encoding="utf-8"))
        return str(raw["servers"][0]["service"]["target"])
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise AdminError(f"{kit}/startup/fed_server.json does not say where the server listens: {error!r}.") from error


def _answers(target: str) -> bool:
    port = int(target.rpartition(":")[2])
    try:
        # The server's own name may not resolve on its own host; what listens at all listens here too.
        with socket.create_connection(("localhost", port), timeout=2.0):
            return True
    except OSError:
        return False


def _configured(kit: Path) -> str:
    # FLARE reads resources.json, and without one the default that the kit came with.
    for name in ("resources.json", "resources.json.default"):
        path = kit / "local" / name
        if not path.exists():
            continue
        try:
            components = json.loads(path.read_text(encoding="utf-8")).get("components", [])
        except (OSError, ValueError) as error:
            raise AdminError(f"{path} cannot be read: {error}.") from error
        for component in components:
            if component.get("id") == _MANAGER:
                return str(component.get("args", {}).get("uri_root", "jobs"))
        break
    raise AdminError(f"{kit}/local names no {_MANAGER}: give the store of jobs by {_STORE_VARIABLE}.")


def _stored(path: Path) -> StoredJob:
    meta = read_json(path)
    return StoredJob(
        path=path,
        id=str(meta.get("job_id", path.parent.name)),
        name=str(meta.get("name", "")),
        status=str(meta.get("status", "")),
        begun=when_begun(meta),
    )
