"""`fedretina wheelhouse`: what a hospital without a way to a package index installs from."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.cli.shared import fail, progress
from fedretina.errors import FedretinaError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--lock",
    type=click.Path(path_type=Path),
    default=Path("requirements.lock"),
    show_default=True,
    help="The lock of this version.",
)
@click.option(
    "--package",
    type=click.Path(exists=True, path_type=Path),
    default=Path(),
    help="fedretina itself: the repository's folder or a wheel [the folder where this is called].",
)
def wheelhouse(folder: Path, lock: Path, package: Path) -> None:
    """Make a FOLDER that installs fedretina without a network, on a machine of this one's kind.

    Call it in the repository's folder, on a machine with a network, the same system and the same version of Python.
    pip fetches every package of the lock, checks its hash, and makes wheels of those that come as sources; the folder
    then holds the wheels, fedretina's own, a list with a hash of each, and a script that installs them. Tell the
    receiver the digest that this prints, otherwise than with the folder.
    """
    from fedretina.kit.wheelhouse import LIST, SCRIPT, make_wheelhouse

    try:
        with progress("packages") as tell:
            made = make_wheelhouse(folder, package, lock, tell)
    except FedretinaError as error:
        fail(str(error))
    click.echo(f"{made.wheels} wheels, {made.size / 1e6:.0f} MB, in {folder}; `sh {SCRIPT} ENVIRONMENT` installs them.")
    click.echo(f"sha256 of {LIST}: {made.digest}")
