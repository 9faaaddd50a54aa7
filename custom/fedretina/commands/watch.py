"""`fedretina watch`: follow a job until it has ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from fedretina.commands.admin import JOB_FAILED, TimeLimit, admin_command, connected, sight_record, tell


@click.command()
@click.argument("job", required=False)
@click.option("--run", help="Instead of a job: the newest job of this run.")
@click.option("--interval", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Seconds between looks.")
@admin_command(timeout_s=0.0)
def watch(
    job: str | None,
    run: str | None,
    interval: float,
    kit: Path,
    timeout: TimeLimit,
    connect_timeout: float,
    as_json: bool,
) -> None:
    """Follow a JOB until it has ended: the round, which sites have answered, about how much training is left.

    One line for every change, after the time since the watching began; with --json one object a line. Ending the
    command does not end the job. A server that is away for less than a minute is waited for.

    Exit codes: 0 the run is complete, 1 the job failed or was lost, 2 no server answers, 3 there is no such job or
    run, 4 the time of --timeout is over.
    """
    from fedretina.flare.admin_jobs import find_job
    from fedretina.flare.admin_runs import outcome
    from fedretina.flare.admin_runs import watch as watch_job

    began = time.monotonic()
    with connected(kit, connect_timeout, as_json, timeout) as session:
        found = find_job(session, job, run)
        if not as_json:
            click.echo(f"job {found.id}, run {found.run or '-'}")
        for sight in watch_job(session, found.id, interval, timeout.left_s, found.run):
            minutes, seconds = divmod(int(time.monotonic() - began), 60)
            record, words = sight_record(sight), f"{minutes:3d}:{seconds:02d}  {sight.words()}"
            if sight.over:
                became = outcome(session, sight)
                record |= {"complete": became.complete, "why": became.why}
                record["owed"] = list(became.owed)
                words += f"\n{became.why}" if became.why else ""
            tell(record, words, as_json)
        sys.exit(0 if became.complete else JOB_FAILED)
