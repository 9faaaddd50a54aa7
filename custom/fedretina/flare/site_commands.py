"""What the server may ask of a site outside its tasks: what running jobs needs, answered in words of our own.

FLARE's client looks at `authorization.json` only where the message that asks says that it should, and the server writes
that message. A server whose operator changed its code could so read any file of a site with `cat`, whatever the site's
file says. So a site's process keeps no command that reads files, folders, logs or the machine, and what the others
answer holds neither an exception's words nor a folder's name. They are done for jobs, and for nothing else of the kit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from nvflare.apis.job_def import JobMetaKey
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import ERROR_MSG_PREFIX, RequestHeader, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

_log = logging.getLogger(__name__)
ANSWERED = frozenset(
    {
        "AbortAppProcessor",
        "AbortTaskProcessor",
        "CancelResourceProcessor",
        "CheckResourceProcessor",
        "ClientStatusProcessor",
        "DeleteRunNumberProcessor",
        "DeployProcessor",
        "NotifyJobStatusProcessor",
        "ReportResourcesProcessor",
        "ReportVersionProcessor",
        "RestartClientProcessor",
        "ScopeInfoProcessor",
        "ShutdownClientProcessor",
        "StartJobProcessor",
    }
)
"""FLARE's classes for the commands that a hardened site answers; those of a later FLARE are refused until looked at."""
ANSWERED_IN_JOBS = frozenset({"AbortCommand", "AbortTaskCommand", "ByeCommand", "CheckStatusCommand"})
"""The same for a job's process: none that gives out the errors and figures that FLARE gathers there."""
_REFUSED = "this site does not answer that: it tells nothing of its files, logs and machine."
_NO_JOB = "this names no job of FLARE's, and the site does nothing."
# FLARE's own answers of these name the folder that was deleted, or the exception.
_OWN_WORDS = {TrainingTopic.DELETE_RUN: "OK"}


class SiteCommand(RequestProcessor):
    """Stands before one of FLARE's commands at a site: refuses it, or does it and answers in our words.

    Args:
        flares: What FLARE would answer with.

    Attributes:
        failed: What is said in place of an exception's words.
    """

    failed = "the site could not do this: its own log says why."

    def __init__(self, flares: RequestProcessor) -> None:
        super().__init__()
        self._flares = flares
        self._answered = type(flares).__name__ in ANSWERED

    def get_topics(self) -> list[str]:
        """The topics of FLARE's command, so that a refusal comes from here and not from nowhere."""
        return list(self._flares.get_topics())

    def process(self, req: Message, app_ctx: Any) -> Message:
        """Answer, or refuse; never raise, since FLARE sends an exception's words."""
        if not self._answered:
            _log.warning("the server asked for %s, which this site does not answer", req.topic)
            return error_reply(_REFUSED)
        job = req.get_header(RequestHeader.JOB_ID)
        if not _may_be_a_job(job) or not _is_of(req.get_header(RequestHeader.JOB_META), job):
            _log.warning("%s of the server names no job, or two, and nothing is done", req.topic)
            return error_reply(_NO_JOB)
        try:
            reply = self.ask_flare(req, app_ctx)
        except Exception:  # noqa: BLE001 - its words may name folders of this machine
            _log.warning("%s failed", req.topic, exc_info=True)
            return error_reply(self.failed)
        if req.topic in _OWN_WORDS and reply is not None:
            reply.body = _OWN_WORDS[req.topic]
        elif req.topic == TrainingTopic.START_JOB and str(reply.body).startswith(ERROR_MSG_PREFIX):
            _log.warning("%s failed: %s", req.topic, reply.body)
            reply.body = f"{ERROR_MSG_PREFIX}: {self.failed}"
        return reply

    def ask_flare(self, req: Message, app_ctx: Any) -> Message:
        """Have FLARE do what is asked; its exceptions, and those of a class that looks first, never leave."""
        return self._flares.process(req, app_ctx)


def _may_be_a_job(name: object) -> bool:
    """Whether it is no name or has the form in which FLARE's server names jobs.

    FLARE takes it for a folder beside `local`, `startup` and, by default, the state of all runs, which
    `train.delete_run` would delete as well, and for a word of the command line that starts a job's process.
    """
    try:
        return name is None or str(UUID(str(name))) == name
    except ValueError:
        return False


def _is_of(meta: object, job: object) -> bool:
    """Whether a job's meta, which names the job once more, names no other: FLARE's launcher takes that name."""
    return not isinstance(meta, Mapping) or meta.get(JobMetaKey.JOB_ID.value, job) == job


def answer_only_for_jobs(before: Mapping[str, type[SiteCommand]]) -> None:
    """Leave this process the commands that jobs need, each behind a `SiteCommand`; a second call changes nothing.

    FLARE hands the lists themselves on before a process connects, so they are changed in place.

    Args:
        before: What stands before a command of FLARE's, by the name of FLARE's class; `SiteCommand` before the others.
    """
    found = ClientRequestProcessors.request_processors
    found[:] = [
        entry if isinstance(entry, SiteCommand) else before.get(type(entry).__name__, SiteCommand)(entry)
        for entry in found
    ]
    AdminCommands.commands[:] = [entry for entry in AdminCommands.commands if type(entry).__name__ in ANSWERED_IN_JOBS]
