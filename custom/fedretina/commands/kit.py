"""`fedretina kit`: harden a startup kit and check it."""

from __future__ import annotations

import click

from fedretina.commands.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "addresses": "fedretina.commands.kit_addresses:addresses",
        "check": "fedretina.commands.kit_check:check",
        "he-keys": "fedretina.commands.kit_he_keys:he_keys",
        "harden": "fedretina.commands.kit_harden:harden",
        "renew": "fedretina.commands.kit_renew:renew",
    },
)
def kit() -> None:
    """Harden a startup kit, check it, bound what its service reaches, renew its certificate; make keys."""
