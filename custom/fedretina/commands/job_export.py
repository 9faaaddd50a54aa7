"""`fedretina job export`: a job as hardened kits accept it."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.commands.lazy import fail
from fedretina.commands.options import RUN, SITES


@click.command()
@click.argument("job", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--sites", type=SITES, required=True, help="Names of the sites that take part, by comma.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not exist.")
@click.option("--quorum", type=click.IntRange(1), help="Sites that make a round, and start the job [the experiment's].")
@click.option("--mandatory", type=SITES, help="Sites without which the job is not started, by comma.")
@click.option("--run", type=RUN, help="Name of the run, to continue an unfinished one or to name a new one.")
@click.option("--phantoms", is_flag=True, help="Let sites without data take part as phantom hospitals (rehearsals).")
def export(
    job: Path,
    sites: tuple[str, ...],
    out: Path,
    quorum: int | None,
    mandatory: tuple[str, ...] | None,
    run: str | None,
    phantoms: bool,
) -> None:
    """Write the production form of a JOB folder: no `custom` folder, named sites, a quorum, no phantom hospitals."""
    from fedretina.errors import FedretinaError
    from fedretina.job_export import export_job

    try:
        experiment = export_job(job, out, sites, quorum, mandatory or (), phantoms, run)
    except FedretinaError as error:
        fail(str(error))
    click.echo(f"{out}: {experiment.row} for {', '.join(sorted(sites))}, quorum {experiment.quorum}")
