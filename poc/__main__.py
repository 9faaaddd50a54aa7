"""`python -m poc`: rehearse a run on this machine, from the startup kits to the table, and stop everything."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from fedretina.aggregation.results import results_table
from fedretina.cli.admin import printable
from fedretina.cli.shared import SecondsType
from fedretina.errors import FedretinaError, NotDoneError, SettingsError
from fedretina.flare.admin_jobs import submit
from fedretina.flare.admin_runs import fetch, outcome, results_file, watch
from fedretina.flare.admin_session import AdminSession
from fedretina.flare.submitted_job import NamedJob, job_sites, named_copy, read_meta
from fedretina.storage import read_json
from poc.federation import LocalFederation

FAILED, USAGE, NOT_DONE, INTERRUPTED = 1, 2, 4, 130


class Clock:
    """Says lines with the time since the start before them."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, line: str) -> None:
        """Print one line."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        click.echo(printable(f"{minutes:3d}:{seconds:02d}  {line}"))


@click.command()
@click.option(
    "--job",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("jobs/feduaa"),
    show_default=True,
    help="The job folder.",
)
@click.option("--sites", type=click.IntRange(1), help="site-1 to site-N instead of the sites that the job names.")
@click.option("--run", help="Name of the run; an unfinished one of that name in this folder goes on.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("poc_workspace"),
    show_default=True,
    help="Folder of kits, logs, state and results. One rehearsal at a time uses it.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The server's port [any that is free].")
@click.option("--site-file", help="The sites' own settings, such as '/srv/{SITE_NAME}/site.yaml'.")
@click.option("--timeout", type=SecondsType(), help="Longest time for the job, in seconds.  [default: no limit]")
@click.option(
    "--hand-over", is_flag=True, help="Hand tensors over as files: faster, but the wire is not rehearsed with them."
)
@click.option("--hold", is_flag=True, help="Leave the federation up after the job, until Ctrl-C.")
def main(
    job: Path,
    sites: int | None,
    run: str | None,
    folder: Path,
    port: int,
    site_file: str | None,
    timeout: float | None,
    hand_over: bool,
    hold: bool,
) -> None:
    """Rehearse a job on this machine.

    Prepares startup kits, starts a server and its sites on the loopback with mutual TLS, submits the job from the
    admin's kit, follows it, fetches the results, prints the table, and stops everything, after Ctrl-C or a failure
    too.

    Exit codes: 0 the run is complete, 1 the job failed, 2 the federation could not be used, 4 the time of --timeout
    is over, 130 interrupted.
    """
    clock = Clock()
    interrupts = Interrupts()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupts.take)
    try:
        names = [f"site-{number}" for number in range(1, sites + 1)] if sites else None
        federation = LocalFederation(folder, names or _sites_of(job), port, clock.say, hand_over)
        with tempfile.TemporaryDirectory() as copies:
            named = named_copy(job, Path(copies), run, names)
            code = _rehearse(federation, named, clock, interrupts, site_file, timeout or 0.0, hold)
    except FedretinaError as error:
        click.echo(printable(f"poc: {error}"), err=True)
        code = NOT_DONE if isinstance(error, NotDoneError) else USAGE
    except KeyboardInterrupt:
        code = INTERRUPTED
    _leave(code)


def _rehearse(
    federation: LocalFederation,
    named: NamedJob,
    clock: Clock,
    interrupts: Interrupts,
    site_file: str | None,
    timeout_s: float,
    hold: bool,
) -> int:
    try:
        federation.prepare(site_file)
        federation.start()
        with federation.session() as session:
            complete = _run(session, federation, named, clock, interrupts, timeout_s)
        if hold:
            clock.say(f"held; the admin's kit is {federation.admin_kit}; Ctrl-C stops all")
            signal.pause()
        return 0 if complete else FAILED
    except KeyboardInterrupt:
        clock.say("interrupted")
        raise
    finally:
        _stop(federation, clock)


def _run(
    session: AdminSession,
    federation: LocalFederation,
    named: NamedJob,
    clock: Clock,
    interrupts: Interrupts,
    timeout_s: float,
) -> bool:
    job = submit(session, named).job
    clock.say(f"run {named.run}: job {job.id} submitted")
    for sight in watch(session, job.id, interval_s=1.0, timeout_s=timeout_s):
        interrupts.raise_again()
        clock.say(sight.words())
    became = outcome(session, sight)
    folder = fetch(session, sight.job, federation.folder / "results")
    path = results_file(folder)
    if path is not None:
        click.echo(results_table(read_json(path)))
        click.echo(f"results: {path}")
        click.echo(f"report over all sites: {path.with_name('report.html')}")
        click.echo(f"a site's model, card and report: {federation.state / named.run}/<site>/final/")
    if became.why:
        click.echo(printable(became.why))
    return became.complete


def _stop(federation: LocalFederation, clock: Clock) -> None:
    clock.say("stopping")
    try:
        federation.stop()
    except KeyboardInterrupt:
        federation.stop(at_once=True)
        raise
    finally:
        clock.say("stopped; no process is left")


def _sites_of(job: Path) -> tuple[str, ...]:
    sites = job_sites(read_meta(job))
    if not sites:
        raise SettingsError(f"{job} goes to all sites: say how many there are by --sites.")
    return sites


def _leave(code: int) -> NoReturn:
    # All is stopped; threads of FLARE's API that an interrupted call left behind must not keep the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Interrupts:
    """Remembers an interrupt: where it is raised inside a call that swallows what it raises, it would be lost."""

    def __init__(self) -> None:
        self._taken = False

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self._taken = True
        raise KeyboardInterrupt

    def raise_again(self) -> None:
        """Raise the interrupt that came before, if one did."""
        if self._taken:
            raise KeyboardInterrupt


if __name__ == "__main__":
    main(prog_name="python -m poc")
