"""A group of commands that imports a command only when it is called or listed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click


class LazyGroup(click.Group):
    """A click group whose further commands are found by module and attribute.

    Args:
        lazy: Command to where it stands, as "package.module:attribute".
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in alphabetical order."""
        return sorted([*super().list_commands(ctx), *self._lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, imported now if need be; None where there is none."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self._lazy[cmd_name].split(":")
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found


def fail(sentence: str) -> NoReturn:
    """Say what is wrong on the error stream and end with code 2."""
    click.echo(f"fedretina: {sentence}", err=True)
    sys.exit(2)
