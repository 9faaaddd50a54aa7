"""A run in the federation, by its admin: submit it, see how far it is, fetch its results, go on with it, mend it."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedretina.cli.admin import (
    FETCH_S,
    JOB_FAILED,
    ONE_LOOK_S,
    USAGE,
    TimeLimit,
    admin_command,
    as_json,
    connected,
    end,
    ending,
    job_record,
    printable,
    sight_record,
    tell,
)
from fedretina.cli.shared import RUN, SecondsType
from fedretina.errors import NotFoundError, SettingsError

if TYPE_CHECKING:
    from fedretina.flare.admin_jobs import Job
    from fedretina.flare.admin_runs import Restart
    from fedretina.flare.admin_session import AdminSession
    from fedretina.flare.submitted_job import NamedJob


@click.command()
@click.argument("job", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--run", type=RUN, help="Name of the run [that of the experiment file, else a new one].")
@click.option("--poc", is_flag=True, help="The federation is a rehearsal, not hardened: it takes a job's own code.")
@click.option("--missing-ok", is_flag=True, help="Submit though sites of the job are not connected.")
@admin_command(ONE_LOOK_S)
def submit(
    job: Path,
    run: str | None,
    poc: bool,
    missing_ok: bool,
    kit: Path,
    timeout: TimeLimit,
    connect_timeout: float,
    as_json: bool,
) -> None:
    """Submit a JOB folder under a run's name, and say the job's id.

    Submitted again under the same name, a run that runs or has completed is left alone: the id of its job is said,
    and no second job starts. The same name with other settings is refused. A run whose job ended badly goes on with
    `fedretina resume`.

    What hardened sites would refuse is not sent, and a job for sites that are not connected is not either: it would
    wait for them, or begin without them for good.

    Exit codes: 0 the job is there, 2 it is not, for the reason given, 4 the time of --timeout is over; then submit it
    again, and no second job starts.
    """
    from fedretina.flare.admin_jobs import submit as submit_run
    from fedretina.flare.submitted_job import named_copy
    from fedretina.job_export import why_refused

    with tempfile.TemporaryDirectory() as folder, ending(as_json):
        named = named_copy(job, Path(folder), run)
        with connected(kit, connect_timeout, as_json, timeout) as session:

            def before() -> None:
                there = session.federation().sites
                refused = None if poc else why_refused(named.folder)
                missing = [] if missing_ok else sorted(set(named.sites) - set(there))
                if refused or missing or not (there or missing_ok):
                    raise SettingsError(_not_sent(job, named, refused, missing, there, Path(folder)))

            done = submit_run(session, named, before)
        text = f"run {named.run}: job {done.job.id} {'submitted' if done.new else f'is there, {done.job.status}'}"
        tell({**job_record(done.job), "new": done.new}, text, as_json)


def _not_sent(
    job: Path, named: NamedJob, refused: str | None, missing: Sequence[str], there: Sequence[str], scratch: Path
) -> str:
    """Why a job was not sent, and the commands that mend it, which are tried before they are told."""
    from fedretina.job_export import export_job

    lines = [f"{job} was not submitted."]
    if refused:
        lines.append(f"A hardened federation would refuse it: {refused}")
        lines.append("If this one is a rehearsal on one machine, not hardened, say so with --poc.")
    if missing:
        lines.append(
            f"Not connected: {', '.join(missing)} (connected: {', '.join(there) or 'none'}). The job would wait, or "
            "begin without them, and who comes later takes no part in it. If that is what you want, add --missing-ok."
        )
    elif not there:
        lines.append("No site is connected.")
    sites = [site for site in named.sites if site in there] or there
    if sites:
        out = _free(f"{job.resolve().name}-job")
        write = ["fedretina", "job", "export", str(job), "--sites", ",".join(sites), "--run", named.run, "--out", out]
        try:
            export_job(job, scratch / "exported", sites, run=named.run)
        except SettingsError as error:
            lines.append(f"`fedretina job export` for {', '.join(sites)} does not mend it: {error}")
        else:
            lines += ["What can be submitted now:", f"  {shlex.join(write)}", f"  fedretina submit {shlex.quote(out)}"]
    return "\n".join(lines)


def _free(name: str) -> str:
    number, free = 1, name
    while Path(free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


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
        text = f"job {found.id}, run {found.run or '-'}\n{sight.words()}"
        record = sight_record(sight)
        if sight.over:
            became = outcome(session, sight)
            record |= {"complete": became.complete, "why": became.why, "owed": list(became.owed)}
            text += f"\n{became.why}" if became.why else ""
        tell(record, text, as_json)


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
    lines = [
        f"server {session.server}, up since {record['started']}",
        f"sites  {', '.join(federation.sites) or 'none is connected'}",
        *(one.words() for one in second),
    ]
    tell(record, "\n".join([*lines, *_jobs_table(jobs, lost)]), in_json)


def _jobs_table(jobs: Sequence[Job], lost: Sequence[str]) -> list[str]:
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


@click.command()
@click.argument("job", required=False)
@click.option("--run", help="Instead of a job: the newest job of this run.")
@click.option("--interval", type=SecondsType(0.2), default=2.0, show_default=True, help="Seconds between looks.")
@admin_command(timeout_s=None)
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

    One line for every change, after the time since the watching began; with --json one object per line. Ending the
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
            record, text = sight_record(sight), f"{minutes:3d}:{seconds:02d}  {sight.words()}"
            if sight.over:
                became = outcome(session, sight)
                record |= {"complete": became.complete, "why": became.why}
                record["owed"] = list(became.owed)
                text += f"\n{became.why}" if became.why else ""
            tell(record, text, as_json)
        sys.exit(0 if became.complete else JOB_FAILED)


@click.command()
@click.argument("job", required=False)
@click.option("--run", help="Instead of a job: the newest job of this run.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("fedretina_results"),
    show_default=True,
    help="Folder to download into; the job gets a folder of its own in it.",
)
@admin_command(FETCH_S)
def results(
    job: str | None, run: str | None, out: Path, kit: Path, timeout: TimeLimit, connect_timeout: float, as_json: bool
) -> None:
    """Download a JOB that has ended and print the run's table.

    What comes is what FLARE keeps of a job at the server (its configuration and the server's logs), and with it, in
    workspace/fedretina, the run's results.json and table: sites' scalars, no model and nothing of an image.

    Exit codes: 0 the results are there, 1 the job left none, with the reason, 2 no server answers, 3 there is no such
    job or run, 4 the job has not ended, or the time of --timeout is over.
    """
    from fedretina.aggregation.results import results_table
    from fedretina.flare.admin_jobs import find_job
    from fedretina.flare.admin_runs import fetch, outcome_of, results_file
    from fedretina.storage import read_json

    with connected(kit, connect_timeout, as_json, timeout) as session:
        found = find_job(session, job, run)
        folder = fetch(session, found, out)
        path, became = results_file(folder), outcome_of(folder, found)
        if path is None:
            end(f"{became.why} What it left lies in {folder}.", JOB_FAILED, as_json)
        lines = [results_table(read_json(path)), f"results: {path}"]
        if path.with_name("report.html").exists():
            lines.append(f"report over all sites: {path.with_name('report.html')}")
        lines += [line for line in (became.why or "").splitlines() if line not in lines[0]]
        record = {**job_record(found), "folder": str(folder), "results_file": str(path), "results": read_json(path)}
        tell(record, "\n".join(lines), as_json)


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
            text = f"run {run}: job {done.job.id} submitted, with the settings of {done.job.resumes}"
            text += f"\nthe run has completed but for the results of {owed}: only these are asked" if owed else ""
        else:
            text = f"run {run} has completed: job {done.job.id}"
            text += (
                f"\nno result from {owed}: not connected, so nobody was asked; resume again once `fedretina status` "
                "lists the site"
                if owed
                else ""
            )
        record = {**job_record(done.job), "new": done.new, "owed": list(done.owed)}
        tell(record, text, as_json)


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
        text = f"run {run}: job {job.id} submitted, with the settings of {restart.settings_of}, from {step} on"
        tell(record, f"{lost}\n{text}" if yes else text, as_json)


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
