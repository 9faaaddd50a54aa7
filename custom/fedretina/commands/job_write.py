"""`fedretina job write`: a job folder for any row of the table."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from fedretina.commands.lazy import fail
from fedretina.commands.options import JOB
from fedretina.commands.options import SITES as NAMES
from fedretina.errors import FedretinaError
from fedretina.job_writer import SITES, job_files, write_job


@click.command()
@click.argument("row")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the job; jobs/NAME by default.")
@click.option("--name", type=JOB, help="Name of the job; the row's by default.")
@click.option(
    "--sites",
    type=NAMES,
    metavar="NAMES",
    default=",".join(SITES),
    show_default=True,
    help="Names of the sites, by comma.",
)
def write(row: str, out: Path | None, name: str | None, sites: tuple[str, ...]) -> None:
    """Write a FLARE job that runs ROW (`fedretina methods` lists them) in the simulator and in POC."""
    try:
        files = job_files(row, name or "", sites)
        folder = out or Path("jobs") / (name or row)
        write_job(folder, files)
    except FedretinaError as error:
        fail(str(error))
    settings = quote(str(folder / "app" / "config" / "experiment.yaml"))
    click.echo(f"wrote {folder}: edit {settings}, then `nvflare simulator {quote(str(folder))}`.")
