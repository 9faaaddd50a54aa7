"""`fedretina kit renew`: which certificates end soon, and new ones under the same authority."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.commands.lazy import fail


@click.command()
@click.argument("state", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("names", nargs=-1)
def renew(state: Path, names: tuple[str, ...]) -> None:
    """List the days left of every certificate in a central provisioning STATE folder; with NAMES, renew theirs.

    Renewing lets FLARE's provisioning forget a participant's certificate and key; its next run writes a kit with new
    ones, under the same authority, and everyone else's stay as they are. With keys made at the hospitals there is no
    such state: there the hospital makes a new request.
    """
    from fedretina.errors import FedretinaError
    from fedretina.kit.renewal import days_left, forget

    try:
        for name, days in days_left(state).items():
            click.echo(f"{days:6.0f} days  {name}")
        if names:
            forget(state, list(names))
    except FedretinaError as error:
        fail(str(error))
    if names:
        click.echo(f"forgotten: {', '.join(names)}. Run `nvflare provision` with the same project file and workspace.")
