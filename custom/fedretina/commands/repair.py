"""`fedretina repair`: on the server's host, clear a job that FLARE lists as running though nobody runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fedretina.commands.admin import USAGE, as_json, ending, tell


@click.command()
@click.argument("job", required=False)
@click.option(
    "--server-kit",
    required=True,
    type=click.Path(path_type=Path),
    help="The server's startup kit on this host: the folder that holds startup/fed_server.json.",
)
@click.option("--yes", is_flag=True, help="Do it; without this, only say what would be done.")
@as_json
def repair(job: str | None, server_kit: Path, yes: bool, as_json: bool) -> None:
    """Clear a JOB that a server's crash left as running; without one, every such job.

    FLARE 2.9 never takes up a job of a server that crashed, and can neither abort, delete nor download it. This
    command, run on the server's host by whoever may write the server's files, sets its status to FINISHED:ABANDONED;
    the server need not be restarted. It touches only a job that is provably lost: no process of this host runs it,
    and the server is down or was started after the job began. The run's own state is left as it is: `fedretina resume`
    goes on with it. It asks no server, so it has no --timeout.

    Exit codes: 0 done, or would be done, or nothing to do; 2 a job is not provably lost; 3 there is no such job, store
    or kit.
    """
    from fedretina.errors import NotFoundError
    from fedretina.flare.job_store import ABANDONED, abandon, begun_jobs, job_store, obstacle

    with ending(as_json):
        store = job_store(server_kit)
        jobs = [found for found in begun_jobs(store) if job is None or found.id.startswith(job.lower())]
        if job is not None and not jobs:
            raise NotFoundError(f"no job {job} in {store} is listed as running.")
        lines, records = [], []
        for found in jobs:
            hindrance = obstacle(found, server_kit)
            if hindrance is None and yes:
                abandon(found)
            done = hindrance is None and yes
            what = f"not touched: {hindrance}" if hindrance else f"{'set' if done else 'would be set'} to {ABANDONED}"
            lines.append(f"{found.id}  {found.name}  {found.status}  {what}")
            records.append({"job": found.id, "name": found.name, "done": done, "obstacle": hindrance})
        if not jobs:
            lines.append("no job is listed as running: nothing to do")
        elif not yes and any(record["obstacle"] is None for record in records):
            lines.append("nothing was changed: add --yes to do it")
        tell({"store": str(store), "jobs": records}, "\n".join(lines), as_json)
        if any(record["obstacle"] for record in records):
            sys.exit(USAGE)
