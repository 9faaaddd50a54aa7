"""The door at which a job comes in: what hardened kits put in the place of FLARE's own deployer and formats.

Both classes are named by a kit's `resources.json`, whose components FLARE builds at the start of every process, the
parent of a site or server and each process of a job, before that process reads anything of a job. Building one leaves
the process no format but JSON. That is why it happens in the constructor: an event would come later, or, in a job's
process, not at all.

At a site the component `app_deployer` is built before the process connects. Ours puts a command of our own before
FLARE's that brings an app: it looks at the bytes before a file is written and decides which words go back. At the
server FLARE deploys with its own class; there it asks the `app_validator`, after its own, which by then reads JSON
alone.
"""

from __future__ import annotations

import io
import logging
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.fl_constant import WorkspaceConstants
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.utils.config import Config, ConfigFormat, ConfigLoader
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.admin_defs import Message, MsgHeader, ReturnCode, error_reply
from nvflare.private.defs import ERROR_MSG_PREFIX, RequestHeader
from nvflare.private.fed.client.training_cmds import DeployProcessor
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.app_deployer import AppDeployer

from fedretina.errors import DataError, StateError
from fedretina.exchange.ledger import REFUSALS, Ledger
from fedretina.flare.site_commands import SiteCommand, answer_only_for_jobs
from fedretina.kit.audit import AuditLog
from fedretina.kit.job_folder import FILES, LARGEST, META, SIGNATURES, head_of, refusal
from fedretina.kit.startup_kit import open_kit, submitter_of
from fedretina.told import one_line

_log = logging.getLogger(__name__)
_ONLY_JSON = "this federation reads configuration in JSON and no other format: send what `fedretina job export` writes."
_MANY = 100  # files and folders of an app, each folder counted for each entry in it; a good one has twelve


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


class DeployCommand(SiteCommand):
    """Stands before FLARE's command that brings a site a job's app: refuses what no job of this package holds.

    FLARE unpacks the bytes before it checks their signature and asks the deployer, so they are looked at here first.
    What is answered goes to the server and to everyone who may look at jobs. A sentence of FLARE's goes on where it is
    known to hold nothing but the job's own words; any other, and every exception, stays in the site's own log.
    """

    failed = "the site could not take the app: its own log says why."

    def process(self, req: Message, app_ctx: Any) -> Message:
        """Deploy the app, or say why not; a refusal stands in the kit's ledger before it leaves."""
        reply = super().process(req, app_ctx)
        kit, why = Path(app_ctx.args.workspace), _why(reply)
        job = one_line(str(req.get_header(RequestHeader.JOB_ID)), 100)
        signer = "" if why else _signer(kit, kit / job / f"{WorkspaceConstants.APP_PREFIX}{app_ctx.get_client_name()}")
        _note(kit, job, req.get_header(RequestHeader.JOB_META), why, signer)
        if not why:
            return reply
        _log.warning("job %s is refused: %s", job, why)
        try:
            Ledger(kit / REFUSALS).note_refusal(job, why)
        except StateError:
            _log.warning("job %s: its refusal could not be written down", job, exc_info=True)
            return error_reply(self.failed)
        return reply

    def ask_flare(self, req: Message, app_ctx: Any) -> Message:
        """Look at the bytes, and have FLARE deploy them where nothing is wrong with them."""
        fault = _refusal_of_zip(req.body)
        if fault:
            return error_reply(f"{ERROR_MSG_PREFIX}: {fault}")
        reply = super().ask_flare(req, app_ctx)
        why = _why(reply)
        if why and why not in _flares_own(req):
            _log.warning("what FLARE said of it stays here: %s", why)
            return error_reply(f"{ERROR_MSG_PREFIX}: {self.failed}")
        return reply


class JobDeployer(AppDeployer):
    """FLARE's deployer of a site; building it puts our commands in the place of FLARE's, `DeployCommand` among them."""

    def __init__(self) -> None:
        super().__init__()
        read_json_only()
        answer_only_for_jobs({DeployProcessor.__name__: DeployCommand})


def _why(reply: Message) -> str:
    """The sentence of a refusal; empty where the app was deployed."""
    if reply.get_header(MsgHeader.RETURN_CODE) == ReturnCode.OK:
        return ""
    return str(reply.body).removeprefix(f"{ERROR_MSG_PREFIX}: ")


def _signer(kit: Path, app: Path) -> str:
    """Who signed an app that FLARE has checked and deployed; empty where nobody did."""
    try:
        found = submitter_of(app, open_kit(kit))
    except DataError:
        return ""
    return "" if found is None else found.name


def _note(kit: Path, job: str, meta: object, why: str, signer: str) -> None:
    """Write into the kit's audit log that a job was taken or refused; one that cannot be written is a warning.

    Its name, and where nobody's signature was checked its submitter, are what the server says.
    """
    named = (("name", JobMetaKey.JOB_NAME), ("submitter", JobMetaKey.SUBMITTER_NAME))
    said = meta if isinstance(meta, Mapping) else {}
    fields = {name: str(said[key.value]) for name, key in named if said.get(key.value)}
    if signer:
        fields["submitter"] = signer
    try:
        AuditLog(kit).note("job refused" if why else "job taken", job=job, **fields, **({"why": why} if why else {}))
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
    """Say why the bytes of an app are not unpacked; None where they may be.

    No more of them is unpacked for it, into memory, than a good app holds.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if sum(entry.filename.count("/") + 1 for entry in entries) > _MANY:
            return f"the job holds more than {_MANY} files and folders: send what `fedretina job export` writes."
        if len({entry.filename for entry in entries}) < len(entries):
            return "the job holds a file twice: send what `fedretina job export` writes."
        # Python unpacks a piece of any other kind whole, however large it becomes.
        if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
            return "the job is packed otherwise than FLARE packs jobs: send what `fedretina job export` writes."
        files = dict.fromkeys((entry.filename for entry in entries if not entry.is_dir()), b"")
        for name in files.keys() & FILES:
            with archive.open(name) as handle:
                files[name] = handle.read(LARGEST + 1)
    return refusal(files)


def _flares_own(req: Message) -> frozenset[str]:
    """FLARE's sentences that hold only what the server itself sent."""
    app, meta = req.get_header(RequestHeader.APP_NAME), req.get_header(RequestHeader.JOB_META)
    scope = meta.get(JobMetaKey.SCOPE, "") if isinstance(meta, Mapping) else ""
    return frozenset(
        {
            "BYOC not permitted",
            "not authorized",
            "missing job meta",
            "unsigned job rejected - signed deploy is required",
            f"failed to stage app {app}",
            f"app {app} does not pass signature verification",
            f"app {app}: signature verified but no signer identity could be extracted",
            f"privacy scope '{scope}' is not allowed",
        }
    )
