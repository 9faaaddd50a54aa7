"""A group of commands that imports a command only when it is called or listed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click


class LazyGroup(click.Group):
    """A click group whose further commands are found by module and attribute.

    Args:
        lazy: Command to where it stands, as "package.module:attribute".
        absent: Package to the sentence that is said where a command of it is called and it is not installed; such a
            command is not listed.
    """

    def __init__(
        self, *args: Any, lazy: Mapping[str, str], absent: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy)
        missing = [package for package in absent or {} if importlib.util.find_spec(package) is None]
        self._absent = {package: (absent or {})[package] for package in missing}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands that are installed, in alphabetical order."""
        here = [name for name, place in self._lazy.items() if place.partition(".")[0] not in self._absent]
        return sorted([*super().list_commands(ctx), *here])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, imported now if need be; None where there is none."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self._lazy[cmd_name].split(":")
        package = module.partition(".")[0]
        if package in self._absent:
            fail(self._absent[package])
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found


def fail(sentence: str) -> NoReturn:
    """Say what is wrong on the error stream and end with code 2."""
    click.echo(f"fedretina: {sentence}", err=True)
    sys.exit(2)
