"""A group of commands that imports a command only when it is called or listed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

import click

_LEAVING_S = 2.0


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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as the program: click ends the process, and threads that a library left behind do not keep it."""
        try:
            return super().__call__(*args, **kwargs)
        except SystemExit as ended:
            # Python joins the threads of every executor before it ends, and FLARE's may wait for a silent server.
            if "nvflare.fuel.flare_api" in sys.modules:
                threading.Thread(target=_leave, args=(ended.code,), daemon=True).start()
            raise

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


def _leave(code: str | int | None) -> NoReturn:
    """End the process, should it not have ended by itself."""
    time.sleep(_LEAVING_S)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it is gone, or it is closed
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def fail(sentence: str) -> NoReturn:
    """Say what is wrong on the error stream and end with code 2."""
    click.echo(f"fedretina: {sentence}", err=True)
    sys.exit(2)
