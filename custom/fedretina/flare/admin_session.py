"""One admin session with the federation's server: FLARE's own API, its errors as sentences, its chatter kept quiet.

FLARE's API can wait for ever, in its logout as in a command: it joins threads that a lost connection holds. So each of
its calls is made in a thread of its own that nobody has to wait for.
"""

from __future__ import annotations

import io
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.common.excepts import ConfigError
from nvflare.fuel.f3.cellnet.cell_cipher import InvalidCertChain
from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.client.api import ResultKey
from nvflare.tool.kit.kit_config import StartupKitConfigError, resolve_admin_user_and_dir_from_startup_kit

from fedretina.errors import AdminError, DataError, NotDoneError, NotFoundError, TimeOverError, UnreachableError
from fedretina.flare.progress_board import GROUP, Report
from fedretina.kit.door import knock
from fedretina.kit.proxy import OF_ADMIN, stated
from fedretina.kit.second_machine import COMMAND as SECOND_MACHINES
from fedretina.kit.second_machine import SecondMachine
from fedretina.kit.startup_kit import open_kit

_NOBODY = (api_spec.NoConnection, api_spec.SessionClosed, api_spec.SessionExpired, FLCommunicationError)
_OTHER = (
    api_spec.InternalError,
    api_spec.InvalidArgumentError,
    api_spec.InvalidTarget,
    api_spec.NoReply,
    api_spec.NoClientsAvailable,
    api_spec.ClientsStillRunning,
    api_spec.JobNotRunning,
    RuntimeError,
    TimeoutError,
    OSError,
)
_REPLY_S = 15.0
"""How long FLARE waits for the answer to a command, or for a piece of a file, in seconds; its own 5 s are few for a
server that is busy."""
_CALL_S, _DOWNLOAD_S = 60.0, 600.0
"""The longest that anybody waits for a call of FLARE's API, in seconds, whatever it does."""
_LOGOUT_S = 3.0
_KNOCK_S = 3.0
"""How long a knock at the door of a server that does not answer may take, in seconds."""
_T = TypeVar("_T")

# FLARE's network layer warns of connections that we report in a sentence; without a handler that goes to the terminal.
logging.getLogger("nvflare").addHandler(logging.NullHandler())


class Federation(NamedTuple):
    """What the server says of itself.

    Attributes:
        started: When the server's process started, in seconds since 1970.
        sites: Names of the connected sites.
        jobs: Ids of the jobs that the server really runs.
    """

    started: float
    sites: tuple[str, ...]
    jobs: frozenset[str]


class AdminSession:
    """A connected admin; use it in a `with` statement.

    Args:
        kit: The admin's startup kit, the folder that holds `startup/fed_admin.json`.
        timeout_s: How long to wait for a connection, and then for each answer to the sign-in, in seconds.
        ends: When the session's time is over, on the clock of `time.monotonic`; then every call ends with
            `TimeOverError`.
    """

    def __init__(self, kit: Path, timeout_s: float = 10.0, ends: float = math.inf) -> None:
        if not (kit / "startup" / "fed_admin.json").is_file():
            raise NotFoundError(f"{kit} is no admin's startup kit: it has no startup/fed_admin.json.")
        try:
            self.user, self._kit = resolve_admin_user_and_dir_from_startup_kit(str(kit))
            admin = json.loads((kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
            self.server = f"{admin['host']}:{admin['port']}"
            self._proxy = stated(admin.get(OF_ADMIN))
            self._opened = open_kit(kit)
        except (StartupKitConfigError, OSError, ValueError, KeyError, DataError) as error:
            raise AdminError(f"the admin kit {kit} cannot be used: {error}") from error
        self._timeout_s = timeout_s
        self._ends = ends
        self._session: Session | None = None

    def __enter__(self) -> Self:
        if self._session is None:
            self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Connect, again if need be.

        Raises:
            TimeOverError: The session's time is over.
            AdminError: This admin's certificate does not hold now, no server answers, or it does not know this admin.
        """
        self.close()
        self._look_at_certificate()
        if self._proxy is not None:
            from fedretina.flare.proxied import go_through  # which imports FLARE's drivers

            go_through(self._proxy)
        try:
            with self._quiet("connect"):
                # Held before it connects: when Ctrl-C interrupts it and nobody closes it, its threads go on for ever.
                session = self._session = Session(self.user, self._kit)
                session.api.auto_login_max_tries = 1
                # Else a server that is connected, but has no core for 5 s, counts as none, whatever time was given.
                session.api.authenticate_msg_timeout = self._timeout_s
                session.api.file_download_progress_timeout = _REPLY_S
                session.set_timeout(_REPLY_S)
                self._bounded("connect", lambda: session.try_connect(self._timeout_s), self._timeout_s + _CALL_S)
        except BaseException:
            self._drop()
            raise

    def close(self) -> None:
        """Log out; a server that is gone is no error here, and one that is silent is not waited for."""
        with redirect_stdout(io.StringIO()):
            wait(self._drop(), min(_LOGOUT_S, self._left_s))

    def federation(self) -> Federation:
        """Ask the server when it started, which sites are connected and what it runs."""
        found = self._asked("ask for the server's state", lambda session: session.get_system_info())
        sites = tuple(sorted(client.name for client in found.client_info))
        return Federation(float(found.server_info.start_time), sites, frozenset(job.job_id for job in found.job_info))

    def second_machines(self) -> tuple[SecondMachine, ...]:
        """Ask which machines were refused in the last 24 hours because their site is connected from another one.

        A server whose kit was not hardened does not know the question: it names none.
        """
        said = self._asked("ask for second machines", lambda session: session.api.do_command(SECOND_MACHINES))
        meta = said.get(ResultKey.META) or {}
        found = meta.get(SECOND_MACHINES) or ()
        return tuple(one for one in map(SecondMachine.read, found) if one is not None)

    def jobs(self) -> list[dict[str, Any]]:
        """The meta of all jobs, the oldest first."""
        return list(self._asked("list jobs", lambda session: session.list_jobs(detailed=True)))

    def job(self, job_id: str) -> dict[str, Any]:
        """The meta of one job.

        Raises:
            NotFoundError: There is no such job.
        """
        return dict(self._asked("ask for a job", lambda session: session.get_job_meta(job_id)))

    def report(self, job_id: str) -> Report | None:
        """How far a job is; None while its process does not answer: before it is up, and when it has ended."""
        try:
            found = self._asked(
                "ask for a job's progress", lambda session: session.show_stats(job_id, api_spec.TargetType.SERVER)
            )
        except (UnreachableError, TimeOverError):
            raise
        except AdminError:
            return None
        server = found.get("server")
        return Report.read(server.get(GROUP)) if isinstance(server, dict) else None

    def submit(self, folder: Path, token: str) -> str | None:
        """Submit a job folder; what was submitted under a token before is not submitted again.

        Returns:
            The job's id, of the first submission under this token; None when that job has been deleted.

        Raises:
            AdminError: The server refuses the job, or had another one under this token.
        """
        try:
            return str(self._asked("submit", lambda session: session.submit_job(str(folder), submit_token=token)))
        except _DeletedError:
            return None

    def clone(self, job_id: str) -> str:
        """Submit a job's settings again, as they lie at the server.

        Returns:
            The new job's id.
        """
        return str(self._asked("submit a job again", lambda session: session.clone_job(job_id)))

    def abort(self, job_id: str) -> None:
        """Abort a job."""
        self._asked("abort a job", lambda session: session.abort_job(job_id))

    def download(self, job_id: str, into: Path) -> Path:
        """Download what FLARE keeps of a job that has ended.

        Returns:
            The folder `into / job_id`.

        Raises:
            NotDoneError: The job has not ended.
        """
        # Logs may be large and the line slow: whoever gave the session a time has said how long is long enough.
        limit_s = _DOWNLOAD_S if math.isinf(self._ends) else math.inf
        return Path(
            self._asked("download a job", lambda session: session.download_job_result(job_id, str(into)), limit_s)
        )

    def shut_down(self) -> None:
        """Stop all sites and the server; FLARE refuses while a job runs."""
        self._asked("shut the federation down", lambda session: session.shutdown(api_spec.TargetType.ALL, wait=False))
        self._session = None

    def _look_at_certificate(self) -> None:
        """See that this admin's certificate holds now; FLARE gives a trace where it does not."""
        certificate, now = self._opened.certificate, datetime.now(UTC)
        if now > certificate.ends:
            raise AdminError(
                f"the certificate of {self.user} ended on {certificate.ends:%Y-%m-%d}, by this machine's clock: ask "
                "the project admin for a new one (provisioning/README.md, Renewal)."
            )
        if now < certificate.begins:
            raise AdminError(
                f"the certificate of {self.user} begins on {certificate.begins:%Y-%m-%d %H:%M} UTC, and this machine's "
                f"clock says {now:%Y-%m-%d %H:%M}: set the clock."
            )

    def _drop(self) -> list[Future[None]]:
        """Begin to log out; whoever wants to wait for that may."""
        session, self._session = self._session, None
        if session is None:
            return []
        # Who never got in has nothing to log out of, and FLARE would print a trace where there is no connection yet.
        return [_begin(session.close if session.api.is_ready() else session.api.close)]

    @property
    def _left_s(self) -> float:
        return max(self._ends - time.monotonic(), 0.0)

    def _asked(self, what: str, call: Callable[[Session], _T], limit_s: float = _CALL_S) -> _T:
        session = self._session
        if session is None:
            raise UnreachableError(f"there is no connection to {self.server}: connect first.")
        with self._quiet(what):
            return self._bounded(what, lambda: call(session), limit_s)

    def _bounded(self, what: str, call: Callable[[], _T], limit_s: float) -> _T:
        """Wait for a call of FLARE's API, but no longer than the limit or the session's time.

        The session of a call that was given up is not used again: nobody knows in which state it is.
        """
        left_s = self._left_s
        if left_s > 0:
            answer = _begin(call)
            wait([answer], None if math.isinf(allowed := min(limit_s, left_s)) else allowed)
            if answer.done():
                return answer.result()
        self._drop()
        if left_s <= limit_s:
            raise TimeOverError(
                f"the time of --timeout was over before we could {what}: the server at {self.server} is slow, or does "
                "not answer."
            )
        raise UnreachableError(f"could not {what}: the server at {self.server} did not answer for {limit_s:g} s.")

    def _why_nobody(self) -> str:
        """What stands in the way to the server, and who can mend it, since FLARE says no more than that it failed."""
        answer = _begin(lambda: knock(self._opened, _KNOCK_S))
        wait([answer], min(2 * _KNOCK_S, self._left_s))  # a name may be looked up for longer than a connection takes
        if not answer.done():
            return "it is down, or the kit belongs to another federation: ask the project admin."
        door = answer.result()
        if not door.problem:
            return (
                "it runs, since it takes this kit's certificate: it may be busy, so give it longer with "
                "--connect-timeout, and ask the project admin if that does not help."
            )
        clock = "" if door.timely else "look at this machine's clock; if it is right, "
        return f"{door.problem}; {door.mend or f'{clock}ask the project admin.'}"

    @contextmanager
    def _quiet(self, what: str) -> Iterator[None]:
        # FLARE's API prints to stdout, which belongs to whoever reads our output.
        try:
            with redirect_stdout(io.StringIO()):
                yield
        except _NOBODY as error:
            raise UnreachableError(
                f"no server answers this admin at {self.server} ({error}): {self._why_nobody()}"
            ) from error
        except api_spec.AuthenticationError as error:
            raise AdminError(
                f"the server at {self.server} does not know {self.user} ({error}): ask the project admin for a kit "
                "of this federation."
            ) from error
        except api_spec.AuthorizationError as error:
            raise AdminError(
                f"{self.user} may not {what}: the server's local/authorization.json says which roles may."
            ) from error
        except api_spec.JobNotFound as error:
            raise NotFoundError(f"{error}: `fedretina status` lists the jobs.") from error
        except api_spec.JobNotDone as error:
            raise NotDoneError(f"{error}: `fedretina watch` waits for its end.") from error
        except api_spec.InvalidJobDefinition as error:
            raise AdminError(f"the server does not take the job: {error}.") from error
        except api_spec.SubmitTokenJobDeleted as error:
            raise _DeletedError(str(error)) from error
        except api_spec.SubmitTokenConflict as error:
            raise AdminError(
                f"a run of this name was submitted with other settings ({error}): choose another name."
            ) from error
        except InvalidCertChain as error:
            raise AdminError(
                f"the certificate of {self.user} is not of the authority of its kit, {self._kit}: take all files of "
                "startup/ from the same kit."
            ) from error
        except ConfigError as error:
            raise AdminError(f"the admin kit {self._kit} cannot be used: {error}.") from error
        except _OTHER as error:
            raise AdminError(f"could not {what}: {error}.") from error


class _DeletedError(AdminError):
    """The token's job has been deleted."""


def _begin(call: Callable[[], _T]) -> Future[_T]:
    """Begin a call in a thread that does not keep the process."""
    answer: Future[_T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits for it
            answer.set_exception(error)

    threading.Thread(target=work, name="flare-call", daemon=True).start()
    return answer
