"""`fedretina export`: a site's model in a format that others run."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.cli.shared import fail, progress
from fedretina.errors import FedretinaError


@click.command()
@click.argument("final", type=click.Path(file_okay=False, path_type=Path))  # where none is, reading it says why
@click.option(
    "--to",
    required=True,
    type=click.Choice(["onnx", "torch", "bundle", "folder"]),
    help="An ONNX file; a torch.export program; a MONAI bundle; a folder as model hubs take it.",
)
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="A new or empty folder.")
def export(final: Path, to: str, out: Path) -> None:
    """Write the model of FINAL, such as RUN/SITE/final, in a format that others run; docs/export.md.

    All that decides an answer goes along: normalisation, temperature, referral, and the gate, without which it does not
    leave. Names of site and run, files, patients and counts by grade do not. Weights and gate were made from patients'
    images all the same: whether they may leave the hospital is for the hospital to say.

    Research software, not a medical device: a doctor decides, whatever it says.
    """
    from fedretina.export.write import export_model

    try:
        with progress("steps") as tell:
            files = export_model(final, to, out, tell)
    except FedretinaError as error:
        fail(str(error))
    click.echo(
        "\n".join([*(f"{out / file}" for file in files), "Look at README.md and name the model's licence in it."])
    )
