"""`fedretina job`: jobs for real hospitals."""

from __future__ import annotations

import click

from fedretina.commands.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={"export": "fedretina.commands.job_export:export", "write": "fedretina.commands.job_write:write"},
)
def job() -> None:
    """Write jobs in their production form."""
