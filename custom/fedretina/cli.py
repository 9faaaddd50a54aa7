"""The command line. The larger commands stand in `fedretina.commands`, a file each, imported when they are called."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.commands.lazy import LazyGroup, fail
from fedretina.commands.options import RUN
from fedretina.version import __version__


@click.group(
    cls=LazyGroup,
    lazy={
        "benchmark": "fedretina_papers.command:benchmark",
        "data": "fedretina.commands.data:data",
        "job": "fedretina.commands.job:job",
        "kit": "fedretina.commands.kit:kit",
        "loop": "fedretina.commands.loop:loop",
        "methods": "fedretina.commands.methods:methods",
        "predict": "fedretina.commands.predict:predict",
        "report": "fedretina.commands.report:report",
        "site": "fedretina.commands.site:site",
        "submit": "fedretina.commands.submit:submit",
        "status": "fedretina.commands.status:status",
        "watch": "fedretina.commands.watch:watch",
        "results": "fedretina.commands.results:results",
        "resume": "fedretina.commands.resume:resume",
        "repair": "fedretina.commands.repair:repair",
    },
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands below too
    absent={
        "fedretina_papers": "the papers' tables are no part of an installed fedretina: run this in a checkout of its "
        "sources that `make demo` has set up."
    },
)
@click.version_option(__version__)
def main() -> None:
    """Federated learning for retinal images on NVIDIA FLARE. Research software, not a medical device."""


@main.command()
@click.argument("run", type=RUN, required=False)
@click.option("--root", type=click.Path(path_type=Path), default=Path("fedretina_runs"), help="Folder of runs.")
def show(run: str | None, root: Path) -> None:
    """Print the table of a finished RUN, of the latest one by default, and where its results lie."""
    from fedretina.aggregation.results_table import results_table
    from fedretina.errors import FedretinaError
    from fedretina.storage import read_json

    found = sorted(root.glob("*/server/results.json"), key=lambda path: path.stat().st_mtime)
    path = root / run / "server" / "results.json" if run else (found[-1] if found else None)
    if path is None or not path.exists():
        named = f"finished run {run}" if run else "finished run"
        fail(f"no {named} under {root}: give --root, or run `nvflare simulator jobs/feduaa`.")
    try:
        click.echo(results_table(read_json(path)))
    except FedretinaError as error:
        fail(str(error))
    except (KeyError, TypeError, AttributeError):  # whatever of a record is not there
        fail(f"{path} is damaged, or no results.json of fedretina: restore it from a backup.")
    click.echo(f"results: {path}")
    click.echo(f"report over all sites: {path.parent / 'report.html'}")
    click.echo(f"a site's model, card and report: {path.parent.parent}/<site>/final/")


@main.command()
@click.argument("experiment", type=click.Path(exists=True, path_type=Path))
@click.option("--grades", type=click.IntRange(2), default=5, help="Grades of the site.")
def partition(experiment: Path, grades: int) -> None:
    """Print what travels and what stays under an EXPERIMENT file."""
    from fedretina.errors import FedretinaError
    from fedretina.settings.experiment import Experiment

    try:
        settings = Experiment.load(experiment)  # before torch is loaded, which takes seconds: a typo is told at once
        from fedretina.exchange.partition import partition_of
        from fedretina.networks.build import build_on_meta

        click.echo(partition_of(settings, build_on_meta(settings.network, grades)).table())
    except FedretinaError as error:
        fail(str(error))


if __name__ == "__main__":
    main(prog_name="fedretina")
