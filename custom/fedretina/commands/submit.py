"""`fedretina submit`: submit a job under a run's name, once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from fedretina.commands.admin import ONE_LOOK_S, TimeLimit, admin_command, connected, ending, job_record, tell


@click.command()
@click.argument("job", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--run", help="Name of the run [that of the experiment file, else a new one].")
@admin_command(ONE_LOOK_S)
def submit(job: Path, run: str | None, kit: Path, timeout: TimeLimit, connect_timeout: float, as_json: bool) -> None:
    """Submit a JOB folder under a run's name, and say the job's id.

    Submitted again under the same name, a run that runs or has completed is left alone: the id of its job is said,
    and no second job starts. The same name with other settings is refused. A run whose job ended badly goes on with
    `fedretina resume`.

    Exit codes: 0 the job is there, 2 it is not, for the reason given.
    """
    from fedretina.flare.admin_jobs import submit as submit_run
    from fedretina.flare.named_job import named_copy

    with tempfile.TemporaryDirectory() as folder, ending(as_json):
        named = named_copy(job, Path(folder), run)
        with connected(kit, connect_timeout, as_json, timeout) as session:
            done = submit_run(session, named)
        words = f"run {named.run}: job {done.job.id} {'submitted' if done.new else f'is there, {done.job.status}'}"
        tell({**job_record(done.job), "new": done.new}, words, as_json)
