"""`fedretina status`: the federation and its jobs, or how far one job is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedretina.commands.admin import ONE_LOOK_S, TimeLimit, admin_command, connected, job_record, sight_record, tell

if TYPE_CHECKING:
    from fedretina.flare.admin_jobs import Job
    from fedretina.flare.admin_session import AdminSession


@click.command()
@click.argument("job", required=False)
@click.option("--run", help="Instead of a job: the newest job of this run.")
@admin_command(ONE_LOOK_S)
def status(
    job: str | None, run: str | None, kit: Path, timeout: TimeLimit, connect_timeout: float, as_json: bool
) -> None:
    """Say how far a JOB is: its state, the round, the sites. Without one: the federation and its jobs.

    A job is named by its id or the beginning of it. This needs the right to view, which every role has; whoever may
    also download the job is told why it failed, and of a completed run which sites have no result.

    Exit codes: 0 said, 2 no server answers, 3 there is no such job or run, 4 the time of --timeout is over.
    """
    from fedretina.flare.admin_jobs import find_job
    from fedretina.flare.admin_runs import outcome, see

    with connected(kit, connect_timeout, as_json, timeout) as session:
        if job is None and run is None:
            _federation(session, as_json)
            return
        found = find_job(session, job, run)
        sight = see(session, found.id, found.run)
        words = f"job {found.id}, run {found.run or '-'}\n{sight.words()}"
        record = sight_record(sight)
        if sight.over:
            became = outcome(session, sight)
            record |= {"complete": became.complete, "why": became.why, "owed": list(became.owed)}
            words += f"\n{became.why}" if became.why else ""
        tell(record, words, as_json)


def _federation(session: AdminSession, in_json: bool) -> None:
    from fedretina.flare.admin_jobs import all_jobs

    federation, jobs, second = session.federation(), all_jobs(session), session.second_machines()
    lost = [job.id for job in jobs if job.lost(federation)]
    record = {
        "server": session.server,
        "admin": session.user,
        "started": datetime.fromtimestamp(federation.started, UTC).isoformat(timespec="seconds"),
        "sites": list(federation.sites),
        "second_machines": [one.record() for one in second],
        "jobs": [{**job_record(job), "lost": job.id in lost} for job in jobs],
    }
    words = [
        f"server {session.server}, up since {record['started']}",
        f"sites  {', '.join(federation.sites) or 'none is connected'}",
        *(one.words() for one in second),
    ]
    tell(record, "\n".join([*words, *_table(jobs, lost)]), in_json)


def _table(jobs: Sequence[Job], lost: Sequence[str]) -> list[str]:
    if not jobs:
        return ["no jobs"]
    names = [job.run or f"({job.name})" for job in jobs]
    width = max(len("run"), *map(len, names))
    lines = [f"{'job':<36}  {'run':<{width}}  {'submitted':<19}  {'took':<8}  status"]
    for job, name in zip(jobs, names, strict=True):
        state = f"{job.status}, lost: see `fedretina repair`" if job.id in lost else job.status
        took = job.duration.partition(".")[0].replace("N/A", "-")
        lines.append(f"{job.id:<36}  {name:<{width}}  {job.submitted[:19]:<19}  {took:<8}  {state}")
    return lines
