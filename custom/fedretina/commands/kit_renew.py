"""`fedretina kit renew`: which certificates end soon, and new ones under the same authority."""

from __future__ import annotations

import sys
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

    A folder that other users of the machine can read is made its owner's alone first; the command then says so, ends
    with code 1 and renews nothing, since whoever read it can make certificates. Called again, it does what was asked.
    """
    from fedretina.errors import FedretinaError
    from fedretina.kit.authority import WHOEVER_READ_IT, days_left, forget, make_private, state_finding

    try:
        left = days_left(state)
        rights = state_finding(state)
        make_private(state)
        for name, days in left.items():
            click.echo(f"{days:6.0f} days  {name}")
        if names and rights.good:
            forget(state, list(names))
    except FedretinaError as error:
        fail(str(error))
    if not rights.good:
        mended = "The rights are mended now; nothing was renewed."
        click.echo(f"fedretina: {rights.found}. {mended} {WHOEVER_READ_IT}", err=True)
        sys.exit(1)
    if names:
        click.echo(f"forgotten: {', '.join(names)}. Run `nvflare provision` with the same project file and workspace.")
