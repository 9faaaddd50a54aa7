"""`fedretina site`: what a hospital's own staff ask of their site."""

from __future__ import annotations

import click

from fedretina.commands.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "check": "fedretina.commands.site_check:check",
        "ledger": "fedretina.commands.site_ledger:ledger",
    },
)
def site() -> None:
    """Check a hospital's site; read its ledger."""
