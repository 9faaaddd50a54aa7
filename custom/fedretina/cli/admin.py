"""What the admin commands share: the kit, the two forms of output, and the exit codes."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from fedretina.cli.shared import SecondsType
from fedretina.errors import FedretinaError, NotDoneError, NotFoundError

if TYPE_CHECKING:
    from fedretina.flare.admin_jobs import Job
    from fedretina.flare.admin_runs import Sight
    from fedretina.flare.admin_session import AdminSession

KIT = "FEDRETINA_ADMIN_KIT"
JOB_FAILED, USAGE, NOT_FOUND, NOT_DONE, INTERRUPTED = 1, 2, 3, 4, 130

_kit = click.option(
    "--kit",
    envvar=KIT,
    show_envvar=True,
    required=True,
    type=click.Path(path_type=Path),
    help="The admin's startup kit: the folder that holds startup/fed_admin.json.",
)
_connect = click.option(
    "--connect-timeout",
    type=SecondsType(1.0),
    default=10.0,
    show_default=True,
    help="How long to wait for the server, in seconds.",
)
ONE_LOOK_S, FETCH_S = 120.0, 600.0
"""Time that a command has by default, in seconds: one that asks or tells the server something, and one that fetches."""
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


class TimeLimit(NamedTuple):
    """How long a command may take, counted from its call, before it loads what it needs.

    Attributes:
        ends: When its time is over, on the clock of `time.monotonic`; infinite for no limit.
    """

    ends: float

    @property
    def left_s(self) -> float:
        """How long is left, in seconds; at least a thousandth, 0 for no limit."""
        return 0.0 if math.isinf(self.ends) else max(self.ends - time.monotonic(), 0.001)


def admin_command(timeout_s: float | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --kit, --timeout, --connect-timeout and --json to a command.

    Args:
        timeout_s: How long the command may take unless --timeout says otherwise, in seconds; None for ever.
    """
    timeout = click.option(
        "--timeout",
        type=SecondsType(),
        default=timeout_s,
        show_default=True if timeout_s else "no limit",
        callback=lambda ctx, option, value: TimeLimit(math.inf if value is None else time.monotonic() + value),
        help="End after so many seconds, whatever the server does.",
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        return _kit(timeout(_connect(as_json(command))))

    return add


@contextmanager
def connected(kit: Path, connect_s: float, in_json: bool, limit: TimeLimit) -> Iterator[AdminSession]:
    """A session with the server; an error of the package ends the command with its exit code.

    Args:
        kit: The admin's startup kit.
        connect_s: How long to wait for a connection, in seconds.
        in_json: Whether the command prints JSON.
        limit: How long the command may take.
    """
    from fedretina.flare.admin_session import AdminSession

    with ending(in_json), AdminSession(kit, connect_s, limit.ends) as session:
        yield session


@contextmanager
def ending(in_json: bool) -> Iterator[None]:
    """End the command with a sentence and an exit code when the package raises an error."""
    try:
        yield
    except FedretinaError as error:
        code = NOT_FOUND if isinstance(error, NotFoundError) else NOT_DONE if isinstance(error, NotDoneError) else USAGE
        end(str(error), code, in_json)
    except KeyboardInterrupt:  # click would end with the code of a failed job
        sys.exit(INTERRUPTED)


def end(sentence: str, code: int, in_json: bool) -> NoReturn:
    """Say what is wrong, in JSON on the output and in words on the error stream, and end."""
    if in_json:
        click.echo(json.dumps({"error": sentence, "exit": code}))
    click.echo(f"fedretina: {printable(sentence)}", err=True)
    sys.exit(code)


def printable(text: str) -> str:
    """Text without control characters: a site's own sentence may be among them, and must not steer a terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def tell(record: Mapping[str, Any], text: str, in_json: bool) -> None:
    """Print a record in JSON, or the text for it."""
    click.echo(json.dumps(record) if in_json else printable(text))


def job_record(job: Job) -> dict[str, Any]:
    """A job as the JSON output shows it."""
    return {
        "job": job.id,
        "run": job.run,
        "name": job.name,
        "status": job.status,
        "submitted": job.submitted,
        "submitter": job.submitter,
        "duration": job.duration,
        "resumes": job.resumes,
    }


def sight_record(sight: Sight) -> dict[str, Any]:
    """A job at one moment as the JSON output shows it."""
    report = None if sight.report is None else sight.report._asdict()
    return {
        **job_record(sight.job),
        "over": sight.over,
        "lost": sight.lost,
        "missing": list(sight.missing),
        "second_machines": [one.record() for one in sight.second],
        "progress": report,
    }
