"""`fedretina data`: bring a site's data in, check or divide them, or draw a phantom hospital to disk."""

from __future__ import annotations

import click

from fedretina.commands.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "check": "fedretina.commands.data_check:check",
        "divide": "fedretina.commands.data_divide:divide",
        "import": "fedretina.commands.data_import:import_",
        "phantom": "fedretina.commands.data_phantom:phantom",
    },
)
def data() -> None:
    """Bring a site's data in, check or divide them, or draw a phantom hospital."""
