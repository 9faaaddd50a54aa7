"""In the lasting process of a site or the server: what FLARE's events say of sign-ins and jobs, for the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey

from fedretina.errors import StateError
from fedretina.kit.audit import AuditLog

_EVENTS = {
    EventType.SYSTEM_START: "service started",
    EventType.SYSTEM_END: "service ended",
    EventType.AFTER_CLIENT_REGISTER: "signed in at the server",
    EventType.CLIENT_REGISTER_PROCESSED: "site signed in",
    EventType.CLIENT_QUIT: "site signed out",
    EventType.SUBMIT_JOB: "job submitted",
    EventType.AFTER_JOB_LAUNCH: "job started",
    EventType.JOB_STARTED: "job started",
    EventType.JOB_ABORTED: "job aborted",
    EventType.JOB_COMPLETED: "job ended",
}
_OF_JOBS = {name for name, words in _EVENTS.items() if words.startswith("job")}
_OF_SITES = {EventType.CLIENT_REGISTER_PROCESSED, EventType.CLIENT_QUIT}


class AuditEvents(FLComponent):
    """Writes sign-ins and the lives of jobs into the kit's audit log; one that cannot be written is a warning.

    FLARE builds this in the processes of jobs as well, which see no SYSTEM_BOOTSTRAP and write nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._audit: AuditLog | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin with the lasting process; write down what belongs into the log."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._audit = AuditLog(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()))
        elif event_type in _EVENTS and self._audit is not None:
            fields = _job(fl_ctx) if event_type in _OF_JOBS else {}
            if event_type in _OF_SITES:
                fields = {"site": _peer(fl_ctx)}
            try:
                self._audit.note(_EVENTS[event_type], **fields)
            except StateError as error:
                self.logger.warning(str(error))


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


def _peer(fl_ctx: FLContext) -> str:
    peer = fl_ctx.get_peer_context()
    return "not named" if peer is None else str(peer.get_identity_name())
