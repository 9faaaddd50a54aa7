"""One admin session with the federation's server: FLARE's own API, its errors as sentences, its chatter kept quiet."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.common.excepts import ConfigError
from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.client.api import ResultKey
from nvflare.tool.kit.kit_config import StartupKitConfigError, resolve_admin_user_and_dir_from_startup_kit

from fedretina.errors import AdminError, NotDoneError, NotFoundError, UnreachableError
from fedretina.flare.one_machine_command import COMMAND as SECOND_MACHINES
from fedretina.flare.progress_board import GROUP, Report
from fedretina.kit.second_machine import SecondMachine

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
        timeout_s: How long to wait for a connection, in seconds.
    """

    def __init__(self, kit: Path, timeout_s: float = 10.0) -> None:
        if not (kit / "startup" / "fed_admin.json").is_file():
            raise NotFoundError(f"{kit} is no admin's startup kit: it has no startup/fed_admin.json.")
        try:
            self.user, self._kit = resolve_admin_user_and_dir_from_startup_kit(str(kit))
            words = json.loads((kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
            self.server = f"{words['host']}:{words['port']}"
        except (StartupKitConfigError, OSError, ValueError, KeyError) as error:
            raise AdminError(f"the admin kit {kit} cannot be used: {error}") from error
        self._timeout_s = timeout_s
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
            AdminError: No server answers, or it does not know this admin.
        """
        self.close()
        try:
            with self._quiet("connect"):
                # Held before it connects: when Ctrl-C interrupts it and nobody closes it, its threads go on for ever.
                self._session = Session(self.user, self._kit)
                self._session.api.auto_login_max_tries = 1
                self._session.try_connect(self._timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Log out; a server that is gone is no error here."""
        session, self._session = self._session, None
        if session is not None:
            try:
                with self._quiet("log out"):
                    session.close()
            except AdminError:
                return

    def federation(self) -> Federation:
        """Ask the server when it started, which sites are connected and what it runs."""
        with self._spoken("ask for the server's state") as session:
            found = session.get_system_info()
        sites = tuple(sorted(client.name for client in found.client_info))
        return Federation(float(found.server_info.start_time), sites, frozenset(job.job_id for job in found.job_info))

    def second_machines(self) -> tuple[SecondMachine, ...]:
        """Ask which machines were refused in the last 24 hours because their site is connected from another one.

        A server whose kit was not hardened does not know the question: it names none.
        """
        with self._spoken("ask for second machines") as session:
            meta = session.api.do_command(SECOND_MACHINES).get(ResultKey.META) or {}
        found = meta.get(SECOND_MACHINES) or ()
        return tuple(one for one in map(SecondMachine.read, found) if one is not None)

    def jobs(self) -> list[dict[str, Any]]:
        """The meta of all jobs, the oldest first."""
        with self._spoken("list jobs") as session:
            return list(session.list_jobs(detailed=True))

    def job(self, job_id: str) -> dict[str, Any]:
        """The meta of one job.

        Raises:
            NotFoundError: There is no such job.
        """
        with self._spoken("ask for a job") as session:
            return dict(session.get_job_meta(job_id))

    def report(self, job_id: str) -> Report | None:
        """How far a job is; None while its process does not answer: before it is up, and when it has ended."""
        try:
            with self._spoken("ask for a job's progress") as session:
                found = session.show_stats(job_id, api_spec.TargetType.SERVER)
        except UnreachableError:
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
            with self._spoken("submit") as session:
                return str(session.submit_job(str(folder), submit_token=token))
        except _DeletedError:
            return None

    def clone(self, job_id: str) -> str:
        """Submit a job's settings again, as they lie at the server.

        Returns:
            The new job's id.
        """
        with self._spoken("submit a job again") as session:
            return str(session.clone_job(job_id))

    def abort(self, job_id: str) -> None:
        """Abort a job."""
        with self._spoken("abort a job") as session:
            session.abort_job(job_id)

    def download(self, job_id: str, into: Path) -> Path:
        """Download what FLARE keeps of a job that has ended.

        Returns:
            The folder `into / job_id`.

        Raises:
            NotDoneError: The job has not ended.
        """
        with self._spoken("download a job") as session:
            return Path(session.download_job_result(job_id, str(into)))

    def shut_down(self) -> None:
        """Stop all sites and the server; FLARE refuses while a job runs."""
        with self._spoken("shut the federation down") as session:
            session.shutdown(api_spec.TargetType.ALL, wait=False)
        self._session = None

    @contextmanager
    def _spoken(self, what: str) -> Iterator[Session]:
        if self._session is None:
            raise UnreachableError(f"there is no connection to {self.server}: connect first.")
        with self._quiet(what):
            yield self._session

    @contextmanager
    def _quiet(self, what: str) -> Iterator[None]:
        # FLARE's API prints to stdout, which belongs to whoever reads our output.
        try:
            with redirect_stdout(io.StringIO()):
                yield
        except _NOBODY as error:
            raise UnreachableError(
                f"no server answers this admin at {self.server} ({error}): it is down, or the kit belongs to another "
                "federation."
            ) from error
        except api_spec.AuthenticationError as error:
            raise AdminError(
                f"the server at {self.server} does not know {self.user} ({error}): its kit belongs to another "
                "federation, or its certificate has expired."
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
        except ConfigError as error:
            raise AdminError(f"the admin kit {self._kit} cannot be used: {error}.") from error
        except _OTHER as error:
            raise AdminError(f"could not {what}: {error}.") from error


class _DeletedError(AdminError):
    """The token's job has been deleted."""
