"""`fedretina job`: a row as a FLARE job, and a job in its production form."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from fedretina.cli.shared import JOB, PHANTOMS, RUN, SITES, fail
from fedretina.errors import FedretinaError
from fedretina.kit.job_folder import SCRIPT


@click.group()
def job() -> None:
    """Write jobs in their production form."""


@job.command()
@click.argument("row")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the job; jobs/NAME by default.")
@click.option("--name", type=JOB, help="Name of the job; the row's by default.")
@click.option(
    "--sites",
    type=SITES,
    metavar="NAMES",
    default=",".join(PHANTOMS),
    show_default=True,
    help="Names of the sites, by comma.",
)
@click.option("--recipe", help="How to train, where sites have few images: small_sites.  [default: as the row's paper]")
@click.option("--learner", is_flag=True, help="The same trainer behind FLARE's ModelLearner.")
@click.option("--replace", is_flag=True, help="Write over the files of a job that is there, your changes with them.")
def write(
    row: str,
    out: Path | None,
    name: str | None,
    sites: tuple[str, ...],
    recipe: str | None,
    learner: bool,
    replace: bool,
) -> None:
    """Write a FLARE job that runs ROW (`fedretina methods` lists them) in the simulator and in POC.

    Beside it stands job.py, which runs it through FLARE's recipes.
    """
    from fedretina.jobs import job_files, job_script, settings_of_row, write_job

    try:
        settings = settings_of_row(row, recipe, name or "") if recipe else None
        files = {**job_files(row, name or "", sites, learner, settings), **job_script()}
        folder = out or Path("jobs") / (name or row)
        write_job(folder, files, replace)
    except FedretinaError as error:
        fail(str(error))
    file = quote(str(folder / "app" / "config" / "experiment.yaml"))
    script = quote(str(folder / SCRIPT))
    click.echo(f"wrote {folder}: edit {file}, then `nvflare simulator {quote(str(folder))}` or `python {script}`.")


@job.command()
@click.argument("job", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--sites", type=SITES, required=True, help="Names of the sites that take part, by comma.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not exist.")
@click.option("--quorum", type=click.IntRange(1), help="Sites that make a round, and start the job [the experiment's].")
@click.option("--mandatory", type=SITES, help="Sites without which the job is not started, by comma.")
@click.option("--run", type=RUN, help="Name of the run, to continue an unfinished one or to name a new one.")
@click.option("--gpu", type=SITES, metavar="NAMES", help="Sites whose process must have a GPU, by comma.")
@click.option("--gpu-memory", type=float, metavar="GIB", help="How much of its memory; with --gpu.")
@click.option("--phantoms", is_flag=True, help="Let sites without data take part as phantom hospitals (rehearsals).")
def export(
    job: Path,
    sites: tuple[str, ...],
    out: Path,
    quorum: int | None,
    mandatory: tuple[str, ...] | None,
    run: str | None,
    gpu: tuple[str, ...] | None,
    gpu_memory: float | None,
    phantoms: bool,
) -> None:
    """Write the production form of a JOB folder: no `custom` folder, named sites, a quorum, no phantom hospitals.

    A site of --gpu must offer such a card (`fedretina kit harden --gpus`), else it takes no part in the job; of several
    cards, the job's process sees the one that it was given.
    """
    from fedretina.job_export import export_job

    if (gpu is None) != (gpu_memory is None):
        fail("say --gpu and --gpu-memory, or neither.")
    cards = dict.fromkeys(gpu or (), gpu_memory or 0.0)
    try:
        experiment = export_job(job, out, sites, quorum, mandatory or (), phantoms, run, cards)
    except FedretinaError as error:
        fail(str(error))
    click.echo(f"{out}: {experiment.row} for {', '.join(sorted(sites))}, quorum {experiment.quorum}")
