"""`fedretina resume`: go on with a run whose job ended before it was complete, or go back in it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedretina.commands.admin import (
    ONE_LOOK_S,
    USAGE,
    TimeLimit,
    admin_command,
    connected,
    end,
    job_record,
    printable,
    tell,
)

if TYPE_CHECKING:
    from fedretina.flare.admin_runs import Restart


@click.command()
@click.argument("run")
@click.option(
    "--from", "step", metavar="STEP", help="Go back: do this step, such as train-0001, and all after it again."
)
@click.option("--yes", is_flag=True, help="With --from: do it without asking.")
@admin_command(ONE_LOOK_S)
def resume(
    run: str, step: str | None, yes: bool, kit: Path, timeout: TimeLimit, connect_timeout: float, as_json: bool
) -> None:
    """Go on with a RUN: submit its settings again under a new job.

    The state of a run is durable at the server and at each site, so the new job goes on after the last round that was
    done, and ends with the bits of a run that was never stopped. Of a run that has completed, it asks the sites that
    trained and have no result for that alone; where all have theirs, or none of them is connected, nothing is done.
    A run whose job still runs is refused.

    With --from the run goes back first, where a round was spoilt: by up to three rounds, or to its first step. What is
    lost is said, and the question asked whether to do it. What is dropped is moved aside at the server and at each
    site, and what has left a site stays in its ledger and in its noise budget.

    Exit codes: 0 the job is there, 2 it is not, 3 there is no such run, 4 the time of --timeout is over; then
    `fedretina status` says whether the job is there.
    """
    if step is not None:
        _go_back(run, step, yes, kit, timeout, connect_timeout, as_json)
        return
    from fedretina.flare.admin_runs import resume as resume_run

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


def _go_back(
    run: str, step: str, yes: bool, kit: Path, timeout: TimeLimit, connect_timeout: float, as_json: bool
) -> None:
    from fedretina.flare.admin_runs import plan_restart, submit_restart

    # A download that was given up may still be writing there.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        connected(kit, connect_timeout, as_json, timeout) as session,
    ):
        restart = plan_restart(session, run, step, Path(folder))
        lost = _lost(run, restart)
        if not yes:
            if as_json:
                end(f"{lost} Add --yes to do it.", USAGE, as_json)
            click.echo(printable(lost))
            if not _agreed():
                click.echo("nothing was changed")
                return
        job = submit_restart(session, restart)
        dropped = None if restart.dropped is None else list(restart.dropped)
        record = {**job_record(job), "new": True, "from": step, "dropped": dropped, "sites": list(restart.sites)}
        words = f"run {run}: job {job.id} submitted, with the settings of {restart.settings_of}, from {step} on"
        tell(record, f"{lost}\n{words}" if yes else words, as_json)


def _agreed() -> bool:
    try:
        return click.confirm("Go back?")
    except click.Abort:  # Ctrl-C, or nobody is there to answer
        click.echo()
        end("nothing was changed: the question was not answered. Add --yes to do it without asking.", USAGE, False)


def _lost(run: str, restart: Restart) -> str:
    """What going back costs, in a sentence or two."""
    if restart.dropped is None:
        what = f"{restart.step} and all after it, how much is not known here"
    elif not restart.dropped:
        what = "nothing: the run stands before this step"
    else:
        names = restart.dropped
        listed = names[0] if len(names) == 1 else f"{len(names)} steps, {names[0]} to {names[-1]}"
        what = f"{listed}, with what {', '.join(restart.sites) or 'nobody'} did in them"
    ends = (
        " The run has completed: its results and report are dropped at the server, and each site's model and report "
        "are replaced when the run ends anew."
        if restart.results
        else ""
    )
    return (
        f"run {run} starts again from {restart.step}; lost: {what}.{ends} What is dropped is moved aside at the server "
        "and at each site. What has left the sites stays in their ledgers and noise budgets."
    )
