"""`fedretina resume`: go on with a run whose job ended before it was complete, or before every site had its result."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.commands.admin import ONE_LOOK_S, TimeLimit, admin_command, connected, job_record, tell


@click.command()
@click.argument("run")
@admin_command(ONE_LOOK_S)
def resume(run: str, kit: Path, timeout: TimeLimit, connect_timeout: float, as_json: bool) -> None:
    """Go on with a RUN: submit its settings again under a new job.

    The state of a run is durable at the server and at each site, so the new job goes on after the last round that was
    done, and ends with the bits of a run that was never stopped. Of a run that has completed, it asks the sites that
    trained and have no result for that alone; where all have theirs, or none of them is connected, nothing is done.
    A run whose job still runs is refused.

    Exit codes: 0 the job is there, 2 it is not, 3 there is no such run, 4 the time of --timeout is over; then
    `fedretina status` says whether the job is there.
    """
    from fedretina.flare.admin_resume import resume as resume_run

    with connected(kit, connect_timeout, as_json, timeout) as session:
        done = resume_run(session, run)
        owed = ", ".join(done.owed)
        if done.new:
            words = f"run {run}: job {done.job.id} submitted, with the settings of {done.job.resumes}"
            words += f"\nthe run has completed but for the results of {owed}: only these are asked" if owed else ""
        else:
            words = f"run {run} has completed: job {done.job.id}"
            words += (
                f"\nno result from {owed}: not connected, so nobody was asked; resume again once `fedretina status` "
                "lists the site"
                if owed
                else ""
            )
        record = {**job_record(done.job), "new": done.new, "owed": list(done.owed)}
        tell(record, words, as_json)
