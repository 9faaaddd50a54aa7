"""A job folder under a run's name: the copy that is submitted, so that the folder itself stays as it is.

FLARE signs a job in place when it is submitted, which leaves files beside the job's own; and a run can only be found
again, followed and continued by a name that the job carries.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedretina.errors import SettingsError
from fedretina.kit.job_folder import SCRIPT
from fedretina.settings.plan import RUN_KEY, new_run_name
from fedretina.storage import require_name

if TYPE_CHECKING:
    from fedretina.settings.experiment import Experiment
    from fedretina.settings.plan import RestartSettings

SUBMITTED_AS = "fedretina_run"
"""Name of the copied folder: FLARE keeps it with the job, so jobs of named runs can be told from others."""
DIGEST = "fedretina_digest"
"""Entry of the copy's `meta.json`: SHA-256 of all that was submitted."""
_EXPERIMENT = "config/experiment.yaml"
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.pyc", ".__nvfl_*")


class NamedJob(NamedTuple):
    """A copy of a job that is ready to be submitted.

    Attributes:
        folder: The copy.
        run: Name of the run.
        digest: SHA-256 of the copy; the same job under the same name gives the same digest.
        sites: Names of the sites that the job goes to; empty for all.
    """

    folder: Path
    run: str
    digest: str
    sites: tuple[str, ...]


def named_copy(
    job: Path,
    into: Path,
    run: str | None = None,
    sites: Sequence[str] | None = None,
    restart: RestartSettings | None = None,
) -> NamedJob:
    """Copy a job folder and write a run's name into it, and where the run goes back to.

    Args:
        job: A job folder of this package.
        into: An existing folder for the copy.
        run: Name of the run; by default the name in the experiment file, else a new one.
        sites: Names of the sites that take part; by default those of the job.
        restart: Where the run goes back to: it is the same run, so the digest stays that of the job as it first was.

    Raises:
        SettingsError: The folder is no job of this package, or its settings cannot be used.
    """
    meta = read_meta(job)
    apps = _apps(job, meta)
    settings = experiments(job)
    names = {found.run for found in settings if found.run}
    if len(names) > 1:
        raise SettingsError(f"the apps of {job} name different runs, {', '.join(sorted(names))}: name one.")
    chosen = require_name(run or next(iter(names), None) or new_run_name(settings[0]), "run")
    folder = into / SUBMITTED_AS
    try:
        shutil.copytree(job, folder, ignore=_NOT_COPIED)
        (folder / SCRIPT).unlink(missing_ok=True)
    except OSError as error:  # a link that leads nowhere, a file that may not be read, a full disk
        raise SettingsError(
            f"{job} cannot be copied as a whole: each of its files must be there and readable, and the disk have room."
        ) from error
    for app in apps:
        path = folder / app.relative_to(job) / _EXPERIMENT
        text = _with_line(path.read_text(encoding="utf-8"), "run", json.dumps(chosen))  # a name may look like a number
        if restart is not None:
            text = _with_line(text, "restart", json.dumps(restart.model_dump()))
        path.write_text(text, encoding="utf-8")
        _require_named(path, app / _EXPERIMENT, chosen, restart)
    meta["name"] = chosen
    if RUN_KEY in meta:
        meta[RUN_KEY] = chosen
    if sites is not None:
        if len(apps) > 1:
            raise SettingsError(f"{job} has {len(apps)} apps: say in its meta.json which sites get which.")
        meta["deploy_map"] = {apps[0].name: ["server", *sites]}
    _write_meta(folder, meta)
    digest = str(meta.get(DIGEST) or _digest(folder)) if restart is not None else _digest(folder)
    _write_meta(folder, {**meta, DIGEST: digest})
    return NamedJob(folder, chosen, digest, job_sites(meta))


def experiments(job: Path) -> list[Experiment]:
    """The settings of a job's apps, in the order of their names.

    Raises:
        SettingsError: The folder is no job of this package, or its settings cannot be used.
    """
    from fedretina.settings.experiment import Experiment

    return [Experiment.load(app / _EXPERIMENT) for app in _apps(job, read_meta(job))]


def job_sites(meta: dict[str, Any]) -> tuple[str, ...]:
    """Names of the sites that a job's meta names; empty when it goes to all."""
    named = [target for targets in meta["deploy_map"].values() for target in targets if isinstance(target, str)]
    return tuple(sorted({name for name in named if name not in ("server", "@ALL")}))


def read_meta(job: Path) -> dict[str, Any]:
    """Read a job folder's `meta.json`.

    Raises:
        SettingsError: The folder is no job.
    """
    try:
        meta = json.loads((job / "meta.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"{job} is no job folder: it has no meta.json.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{job / 'meta.json'} cannot be read: {error}.") from error
    apps = meta.get("deploy_map") if isinstance(meta, dict) else None
    if not isinstance(apps, dict) or not apps or not all(isinstance(targets, list) for targets in apps.values()):
        raise SettingsError(f"{job / 'meta.json'} names no deploy_map with a list of sites an app: see jobs/feduaa.")
    return dict(meta)


def _apps(job: Path, meta: dict[str, Any]) -> list[Path]:
    apps = [job / app for app in sorted(meta["deploy_map"])]
    for app in apps:
        if not (app / _EXPERIMENT).is_file():
            raise SettingsError(f"{job} is no job of fedretina: {app.name}/{_EXPERIMENT} is missing.")
    return apps


def _require_named(copy: Path, source: Path, run: str, restart: RestartSettings | None) -> None:
    """Refuse a job into whose settings no line can be written: the server and every site would refuse it later.

    Raises:
        SettingsError: The copy cannot be read any more, or still says something else.
    """
    from fedretina.settings.experiment import Experiment

    try:
        found = Experiment.load(copy)
        if found.run == run and (restart is None or found.restart == restart):
            return
    except SettingsError:
        pass
    raise SettingsError(
        f"the run's name cannot be written into {source}: write its settings as `name: value` lines that begin at the "
        "left margin, `run: NAME` in one line of its own, and nothing after the last."
    )


def _with_line(text: str, name: str, value: str) -> str:
    line = f"{name}: {value}"
    changed, found = re.subn(rf"^{name}:.*$", lambda _: line, text, count=1, flags=re.MULTILINE)
    return changed if found else f"{text.rstrip()}\n{line}\n"


def _write_meta(folder: Path, meta: dict[str, Any]) -> None:
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()
