"""In the lasting process of a site or the server: what FLARE says of sign-ins, admins and jobs, for the audit log.

FLARE tells components of sites and of jobs by events. Of admins it tells nothing: who signed in, what was asked and
what was refused is taken from the commands that the server's admin console has answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import AdminCommandNames, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.proto import InternalCommands, MetaKey, MetaStatusValue, ProtoKey, ReplyKeyword
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.defs import ClientType, InternalFLContextKey

from fedretina.errors import StateError
from fedretina.kit.audit import AuditLog

_EVENTS = {
    EventType.SYSTEM_START: "service started",
    EventType.SYSTEM_END: "service ended",
    EventType.AFTER_CLIENT_REGISTER: "signed in at the server",
    EventType.CLIENT_REGISTER_PROCESSED: "site signed in",
    EventType.CLIENT_QUIT: "site signed out",
    EventType.AFTER_JOB_LAUNCH: "job started",
    EventType.JOB_STARTED: "job started",
    EventType.JOB_ABORTED: "job aborted",
    EventType.JOB_COMPLETED: "job ended",
}
_OF_JOBS = {name for name, words in _EVENTS.items() if words.startswith("job")}
_CHANGES = frozenset(
    {
        AdminCommandNames.ABORT_JOB,
        AdminCommandNames.DELETE_JOB,
        AdminCommandNames.CLONE_JOB,
        AdminCommandNames.DOWNLOAD_JOB,
        AdminCommandNames.DOWNLOAD_JOB_COMPONENTS,
        AdminCommandNames.REMOVE_CLIENT,
        AdminCommandNames.DISABLE_CLIENT,
        AdminCommandNames.ENABLE_CLIENT,
        AdminCommandNames.SHUTDOWN,
        AdminCommandNames.RESTART,
        AdminCommandNames.ABORT,
        AdminCommandNames.ABORT_TASK,
    }
)
"""Commands that change something or take something away; who only looks is in FLARE's own `audit.log`."""
_NOT_SIGNED_IN = ("not authenticated", ReplyKeyword.SESSION_INACTIVE)
_LONGEST = 100


class AuditEvents(FLComponent):
    """Writes sign-ins, what admins did, and the lives of jobs into the kit's audit log.

    What cannot be written is a warning in the end's log: the service is worth more than a line of it. FLARE builds this
    in the processes of jobs as well, which see no SYSTEM_BOOTSTRAP and write nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._audit: AuditLog | None = None
        self._server: Any = None
        self._lock = threading.Lock()
        self._tokens: dict[str, str] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin with the lasting process; write down what belongs into the log."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._audit = AuditLog(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()))
            self._begin(fl_ctx.get_prop(FLContextKey.SITE_OBJ))
        elif event_type == EventType.CLIENT_REGISTER_PROCESSED:
            if fl_ctx.get_prop(FLContextKey.CLIENT_TYPE, ClientType.REGULAR) != ClientType.REGULAR:
                return  # the line of an admin, who signs in by a command
            site = _registered(fl_ctx)
            self._note("site signed in" if self._is_new(site) else "site sign-in refused", {"site": site})
        elif event_type == EventType.CLIENT_QUIT:
            self._note(_EVENTS[event_type], {"site": _peer(fl_ctx)})
        elif event_type in _EVENTS:
            self._note(_EVENTS[event_type], _job(fl_ctx) if event_type in _OF_JOBS else {})

    def _begin(self, end: Any) -> None:
        """At a server, see each command of its admin console; FLARE makes the console after this event."""
        take = getattr(end, "set_admin_server", None)
        if take is None:
            return  # a site
        self._server = end

        def taken(admin_server: Any) -> None:
            register = admin_server.cmd_reg
            plain: Callable[[Connection, str], None] = register.process_command

            def process(conn: Connection, command: str) -> None:
                plain(conn, command)
                try:
                    found = command_event(conn)
                except Exception as error:  # noqa: BLE001 - the command is answered, and its answer must go
                    self.logger.warning(f"an admin's command is not in the audit log: {type(error).__name__}: {error}")
                    return
                if found is not None:
                    self._note(*found)

            register.process_command = process
            take(admin_server)

        end.set_admin_server = taken

    def _is_new(self, site: str) -> bool:
        """Whether the server has given the site a token since the last time; it says so by no event."""
        if self._server is None:
            return True
        with self._lock:
            client = self._server.client_manager.name_to_clients.get(site)
            if client is None or client.token == self._tokens.get(site):
                return False
            self._tokens[site] = client.token
            return True

    def _note(self, event: str, fields: Mapping[str, str]) -> None:
        if self._audit is None:
            return
        try:
            self._audit.note(event, **fields)
        except StateError as error:
            self.logger.warning(str(error))


def command_event(conn: Connection) -> tuple[str, dict[str, str]] | None:
    """What the audit log says of a command that the admin console has answered; None where it says nothing.

    Args:
        conn: The command's connection, with what was answered in its buffer.
    """
    args = [str(word) for word in conn.args or ()]
    name = args[0].rpartition(".")[2] if args else ""  # "job_mgmt.submit_job" is one of its names
    user = str(conn.get_prop(ConnProps.USER_NAME, "") or "not signed in")
    if name == InternalCommands.CERT_LOGIN:
        let_in = any(part.get(ProtoKey.TYPE) == ProtoKey.TOKEN for part in conn.buffer.data)
        claimed = args[1] if len(args) > 1 else "not named"
        return "admin signed in" if let_in else "admin sign-in refused", {"user": claimed}
    if name == InternalCommands.LOGOUT:
        return "admin signed out", {"user": user}
    return _asked(name, args[1:], user, conn.buffer.meta)


def _asked(name: str, args: list[str], user: str, meta: Mapping[str, Any]) -> tuple[str, dict[str, str]] | None:
    """A command of a signed-in admin, by what the console's answer says of itself."""
    status, why = str(meta.get(MetaKey.STATUS, MetaStatusValue.OK)), str(meta.get(MetaKey.INFO, ""))
    said = {"user": user, "command": " ".join([name, *args])[:_LONGEST]}
    if status == MetaStatusValue.NOT_AUTHORIZED or why.startswith(_NOT_SIGNED_IN):
        return "command refused", said
    if name == AdminCommandNames.SUBMIT_JOB:
        job = str(meta.get(MetaKey.JOB_ID, ""))
        sent = {"name": "".join(args[:1]).strip("/").rpartition("/")[2], "submitter": user}
        return ("job submitted", {"job": job, **sent}) if job else ("job refused", {**sent, "why": why or status})
    if name in _CHANGES:
        return "command done" if status == MetaStatusValue.OK else "command failed", said
    return None


def _job(fl_ctx: FLContext) -> dict[str, str]:
    """Id, name and submitter of an event's job, as far as the event says."""
    meta: Mapping[str, Any] = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
    data = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
    told: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    found = {
        "job": told.get(JobMetaKey.JOB_ID.value)
        or fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID)
        or meta.get(JobMetaKey.JOB_ID.value),
        "name": meta.get(JobMetaKey.JOB_NAME.value),
        "submitter": meta.get(JobMetaKey.SUBMITTER_NAME.value),
    }
    return {name: str(value) for name, value in found.items() if value}


def _registered(fl_ctx: FLContext) -> str:
    """The site that asked to sign in, by the session in which the server has challenged it."""
    session = fl_ctx.get_prop(InternalFLContextKey.CLIENT_REG_SESSION)
    return str(getattr(session, "client_name", None) or _peer(fl_ctx))


def _peer(fl_ctx: FLContext) -> str:
    peer = fl_ctx.get_peer_context()
    return "not named" if peer is None else str(peer.get_identity_name())
