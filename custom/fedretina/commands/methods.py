"""`fedretina methods`: the rows of the table."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedretina.commands.lazy import fail
from fedretina.commands.progress import progress
from fedretina.errors import FedretinaError


@click.command()
@click.argument("row", required=False)
@click.option("--encoder", default="resnet50", show_default=True, help="Encoder whose bytes are counted.")
@click.option(
    "--experiment", type=click.Path(exists=True, path_type=Path), help="Take the encoder of this file instead."
)
@click.option("--sites", type=click.IntRange(1), default=5, show_default=True, help="Number of sites.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def methods(row: str | None, encoder: str, experiment: Path | None, sites: int, as_json: bool) -> None:
    """List the methods with their axes and bytes, or show one ROW in full."""
    from fedretina.settings.experiment import Experiment

    try:
        # Before torch is loaded, which takes seconds: a typo is told at once.
        chosen = encoder if experiment is None else Experiment.load(experiment).network.encoder
        from fedretina.methods_table import method_text, methods_text
        from fedretina.methods_table import methods as work_out

        with progress("methods") as tell:
            listed = work_out(chosen, sites, [row] if row else (), tell)
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps([method._asdict() for method in listed], indent=1))
    else:
        click.echo(method_text(listed[0], sites) if row else methods_text(listed, sites))
