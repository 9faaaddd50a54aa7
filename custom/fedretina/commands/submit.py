"""`fedretina submit`: submit a job under a run's name, once."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedretina.commands.admin import ONE_LOOK_S, TimeLimit, admin_command, connected, ending, job_record, tell
from fedretina.commands.options import RUN

if TYPE_CHECKING:
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
    from fedretina.errors import SettingsError
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
        words = f"run {named.run}: job {done.job.id} {'submitted' if done.new else f'is there, {done.job.status}'}"
        tell({**job_record(done.job), "new": done.new}, words, as_json)


def _not_sent(
    job: Path, named: NamedJob, refused: str | None, missing: Sequence[str], there: Sequence[str], scratch: Path
) -> str:
    """Why a job was not sent, and the commands that mend it, which are tried before they are told."""
    from fedretina.errors import SettingsError
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
