"""The door at which a job comes in: what hardened kits put in the place of FLARE's own deployer and formats.

Both classes are named by a kit's `resources.json`, whose components FLARE builds at the start of every process, the
parent of a site or server and each process of a job, before that process reads anything of a job. Building one leaves
the process no format but JSON. That is why it happens in the constructor: an event would come later, or, in a job's
process, not at all.

At a site FLARE asks the component `app_deployer` to deploy an app, so ours looks at the bytes before a file is written
and decides which words go back. At the server FLARE deploys with its own class; there it asks the `app_validator`,
after its own, which by then reads JSON alone.
"""

from __future__ import annotations

import io
import logging
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from nvflare.apis.app_deployer_spec import AppDeployerSpec
from nvflare.apis.app_validation import AppValidator
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils.config import Config, ConfigFormat, ConfigLoader
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.app_deployer import AppDeployer

from fedretina.errors import StateError
from fedretina.exchange.ledger import REFUSALS, Ledger
from fedretina.flare.site_commands import answer_only_for_jobs
from fedretina.kit.audit import AuditLog
from fedretina.kit.job_folder import LARGEST, META, SIGNATURES, head_of, refusal
from fedretina.told import one_line

_log = logging.getLogger(__name__)
_ONLY_JSON = "this federation reads configuration in JSON and no other format: send what `fedretina job export` writes."
_UNSAID = "the site could not take the app: its own log says why."
_MANY = 100  # entries of an app; a good one has nine


class NoLoader(ConfigLoader):
    """Stands where a loader of another format stood, and reads nothing.

    Taking the entry away would do for files; but FLARE's server asks for a loader when a job arrives and calls what it
    gets, and an end that says what it refuses is better than one that fails on None.
    """

    def load_config(self, file_path: str) -> NoReturn:
        """Refuse.

        Raises:
            ValueError: Always.
        """
        raise ValueError(_ONLY_JSON)

    def load_config_from_str(self, config_str: str) -> NoReturn:
        """Refuse.

        Raises:
            ValueError: Always.
        """
        raise ValueError(_ONLY_JSON)

    def load_config_from_dict(self, config_dict: dict[str, Any]) -> Config:
        """Refuse.

        Raises:
            ValueError: Always.
        """
        raise ValueError(_ONLY_JSON)


def read_json_only() -> None:
    """Leave this process no format of configuration but JSON.

    Raises:
        RuntimeError: This FLARE keeps its loaders elsewhere; the process must not start with them.
    """
    loaders = getattr(ConfigFactory, "_fmt2Loader", None)  # FLARE has no public way to them
    if not isinstance(loaders, dict) or ConfigFormat.JSON not in loaders:
        raise RuntimeError("this FLARE does not show its configuration loaders: use the version of the lock.")
    for kind in ConfigFormat:
        if kind is not ConfigFormat.JSON:
            loaders[kind] = NoLoader(kind)


def take_known_names_only() -> None:
    """Have this process refuse, on submission, a job that holds files beside its apps; a second call changes nothing.

    FLARE never deploys nor reads such files, but it would store them at the server for as long as the job is kept. It
    asks no component on submission that sees them, so its own check of a submitted job is extended.
    """
    plain = JobMetaValidator.validate
    if getattr(plain, "takes_known_names_only", False):
        return

    def validate(self: JobMetaValidator, job_name: str, job_data: bytes | str) -> tuple[bool, str, dict[str, Any]]:
        valid, error, meta = plain(self, job_name, job_data)
        fault = _beside_apps(job_name, job_data, meta) if valid else None
        return (False, fault, meta) if fault else (valid, error, meta)

    validate.takes_known_names_only = True  # type: ignore[attr-defined]
    JobMetaValidator.validate = validate


def _beside_apps(job_name: str, job_data: bytes | str, meta: Mapping[str, Any]) -> str | None:
    apps = tuple(f"{job_name}/{app}/" for app in meta.get(JobMetaKey.DEPLOY_MAP.value) or ())
    known = {f"{job_name}/{name}" for name in (META, *SIGNATURES)}
    with zipfile.ZipFile(io.BytesIO(job_data) if isinstance(job_data, bytes) else job_data) as archive:
        names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    for name in names:
        if name not in known and not name.startswith(apps):
            shown = one_line(name.removeprefix(f"{job_name}/"), 100)
            return f"a job holds {META} and its apps and nothing else, but this one has {shown}: leave it out."
    return None


class JobDeployer(AppDeployerSpec):
    """Deploys a job's app at a site: refuses what no job of this package holds, before FLARE looks at it.

    What it answers goes to the server and to everyone who may look at jobs. A sentence of FLARE's goes on where it is
    known to hold nothing but the job's own words; any other, and every exception, stays in the site's own log.
    """

    def __init__(self) -> None:
        super().__init__()
        read_json_only()
        answer_only_for_jobs()
        self._flares = AppDeployer()

    def deploy(
        self,
        workspace: Workspace,
        job_id: str,
        job_meta: dict[str, Any],
        app_name: str,
        app_data: bytes,
        fl_ctx: FLContext,
    ) -> str:
        """Deploy the app; return why not, or an empty sentence. What is returned stands in the site's ledger before."""
        said = self._deploy(workspace, job_id, job_meta, app_name, app_data, fl_ctx)
        kit = Path(workspace.get_root_dir())
        _note(kit, job_id, job_meta, said)
        if not said:
            return ""
        try:
            Ledger(kit / REFUSALS).note_refusal(job_id, said)
        except StateError:
            _log.warning("job %s: its refusal could not be written down", job_id, exc_info=True)
            return _UNSAID
        return said

    def _deploy(
        self,
        workspace: Workspace,
        job_id: str,
        job_meta: dict[str, Any],
        app_name: str,
        app_data: bytes,
        fl_ctx: FLContext,
    ) -> str:
        try:
            fault = _refusal_of_zip(app_data)
            if fault:
                _log.warning("job %s is refused: %s", job_id, fault)
                return fault
            said = self._flares.deploy(workspace, job_id, job_meta, app_name, app_data, fl_ctx)
        except Exception:  # noqa: BLE001 - FLARE would send its words, which may name folders of this machine
            _log.warning("job %s was not deployed", job_id, exc_info=True)
            return _UNSAID
        if not said or said in _flares_own(app_name, job_meta):
            return said or ""
        _log.warning("job %s was not deployed: %s", job_id, said)
        return _UNSAID


def _note(kit: Path, job_id: str, job_meta: Mapping[str, Any], why: str) -> None:
    """Write into the kit's audit log that a job was taken or refused; one that cannot be written is a warning."""
    named = (("name", JobMetaKey.JOB_NAME), ("submitter", JobMetaKey.SUBMITTER_NAME))
    fields = {name: str(job_meta[key.value]) for name, key in named if job_meta.get(key.value)}
    try:
        AuditLog(kit).note("job refused" if why else "job taken", job=job_id, **fields, **({"why": why} if why else {}))
    except StateError as error:
        _log.warning("%s", error)


class JobValidator(AppValidator):
    """Refuses at the server what no job of this package holds: beside its apps on submission, in one at deployment."""

    def __init__(self) -> None:
        super().__init__()
        read_json_only()
        take_known_names_only()

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """Look at an app's folder; return why it is refused, or an empty sentence."""
        root = Path(app_folder)
        found = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if not path.is_dir()}
        return refusal({name: head_of(path) for name, path in found.items()}) or "", {}


def _refusal_of_zip(content: bytes) -> str | None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        if len(entries) > _MANY:
            return f"the job holds {len(entries)} files: send what `fedretina job export` writes."
        if len({entry.filename for entry in entries}) < len(entries):
            return "the job holds a file twice: send what `fedretina job export` writes."
        files = {}
        for entry in entries:
            with archive.open(entry) as handle:
                files[entry.filename] = handle.read(LARGEST + 1)
    return refusal(files)


def _flares_own(app_name: str, job_meta: Mapping[str, Any]) -> frozenset[str]:
    """FLARE's sentences that hold only what the server itself sent."""
    return frozenset(
        {
            "BYOC not permitted",
            "not authorized",
            f"app {app_name} does not pass signature verification",
            f"app {app_name}: signature verified but no signer identity could be extracted",
            f"privacy scope '{job_meta.get(JobMetaKey.SCOPE, '')}' is not allowed",
        }
    )
