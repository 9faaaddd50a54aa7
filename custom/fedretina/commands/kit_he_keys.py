"""`fedretina kit he-keys`: keys for heads that the server mixes without reading them."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.commands.lazy import fail


@click.command("he-keys")
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
def he_keys(out: Path) -> None:
    """Make the keys of a consortium for jobs with `exchange.encrypt: head`, in the folder OUT.

    `he-site.keys` is secret: one hospital makes it and hands it to the other hospitals, never to the server or its
    admin. Each names it as `he_keys` in its site file. `he-server.keys` goes to the server, whose `fedretina_server`
    settings name it as `he_keys`. Keys that are there are not written over.
    """
    from fedretina.errors import FedretinaError
    from fedretina.exchange.encryption import new_keys

    try:
        for path in new_keys(out):
            click.echo(path)
    except FedretinaError as error:
        fail(str(error))
