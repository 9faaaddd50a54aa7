"""What all commands share: groups that import late, kinds of options, bars on a terminal.

Nothing heavy may be imported here: every call of `fedretina` pays for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import click

from fedretina.errors import FedretinaError
from fedretina.settings.scheme_presets import SCHEMES
from fedretina.storage import require_name, require_sites

_LEAVING_S = 2.0
JSON_LINES = "json_lines"
_YEAR_S = 31_536_000
PHANTOMS = ("site-1", "site-2", "site-3", "site-4", "site-5")
"""Sites of a rehearsal where none is named."""


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


def json_lines() -> bool:
    """Whether the command was called as `fedretina --json-lines ...`: what it tells while it works is for a machine."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get(JSON_LINES))


def say(text: str, record: Mapping[str, Any]) -> None:
    """Tell something on the error stream, while the command works.

    Args:
        text: For people.
        record: The same for a machine, which is told it as one line of JSON under `--json-lines`.
    """
    click.echo(json.dumps(dict(record)) if json_lines() else text, err=True)


def fail(sentence: str) -> NoReturn:
    """Say what is wrong on the error stream and end with code 2."""
    say(f"fedretina: {sentence}", {"error": sentence})
    sys.exit(2)


class NameType(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click alone
    """A name that may be a folder's.

    Args:
        name: What is named, such as "run".
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name itself."""
        try:
            return require_name(str(value), self.name)
        except FedretinaError as error:
            self.fail(str(error), param, ctx)


class PartType(click.Choice):  # type: ignore[type-arg]  # generic in new versions of click alone
    """A name of the product's, which help lists, or of a part that another package brings.

    Args:
        names: The product's.
        known: Gives all names, those of other packages too; called for a name that is not the product's.
    """

    def __init__(self, names: Iterable[str], known: Callable[[], Iterable[str]]) -> None:
        super().__init__(list(names))
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name itself."""
        if value in self.choices:
            return str(value)
        from fedretina.settings.choice import load_parts

        try:
            load_parts()
        except FedretinaError as error:
            self.fail(str(error), param, ctx)
        return str(click.Choice(list(self._known())).convert(value, param, ctx))


def _modalities() -> Iterable[str]:
    from fedretina.settings.images import ImageSettings

    return ImageSettings.choices()


class SitesType(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click alone
    """Names of sites by comma, each once; a value with a name that cannot be is refused."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names in the order in which they were given."""
        if isinstance(value, tuple):
            return value
        try:
            return require_sites([name.strip() for name in str(value).split(",") if name.strip()])
        except FedretinaError as error:
            self.fail(str(error), param, ctx)


class SiteFileType(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click alone
    """A site and its site file, as NAME=FILE."""

    name = "NAME=FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """The site and the path."""
        if isinstance(value, tuple):
            return value
        site, sign, file = str(value).partition("=")
        if not (site and sign and file):
            self.fail(f"{value!r} is no NAME=FILE: name the site, then its site file.", param, ctx)
        try:
            return require_sites([site])[0], file
        except FedretinaError as error:
            self.fail(str(error), param, ctx)


class SecondsType(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click alone
    """A time in seconds, at most a year; nan, which no comparison stops, and infinity are none.

    Args:
        least: The shortest that makes sense; by default any above 0.
    """

    name = "seconds"

    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The time in seconds."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not (self.least <= seconds <= _YEAR_S and seconds > 0.0):
            bounds = f"from {self.least:g}" if self.least else "above 0"
            self.fail(f"{value!r} is no such time: give a number of seconds {bounds} up to {_YEAR_S}.", param, ctx)
        return seconds


DEVICE = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where to compute; auto is CUDA where there is one.",
)
"""Of commands that answer with a model."""
MODALITY = PartType(dict.fromkeys(scheme.modality for scheme in SCHEMES.values()), _modalities)
SCHEME = PartType(SCHEMES, lambda: SCHEMES)
RUN, SITE, JOB = NameType("run"), NameType("site"), NameType("job")
SITES, SITE_FILE = SitesType(), SiteFileType()


def site_files(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Site files by site.

    Args:
        pairs: Values of a repeated option of `SiteFileType`.

    Raises:
        SettingsError: A site is named twice.
    """
    if pairs:
        require_sites([site for site, _ in pairs])
    return dict(pairs)


def names_by_comma(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Callback of an option that takes names by comma; none where it is not given."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


Tell = Callable[[int, int], None]
"""Takes how many are done, and of how many."""
_One = TypeVar("_One")


@contextmanager
def progress(label: str) -> Iterator[Tell]:
    """Show a bar while the block runs; under `--json-lines` write a line for each hundredth.

    Args:
        label: What is counted, such as "images".

    Yields:
        What is to be called after each one; the first call draws the bar, the last ends it.
    """
    if json_lines():
        yield _lines(label)
        return
    with ExitStack() as shown:
        bar: Any = None

        def tell(done: int, of: int) -> None:
            nonlocal bar
            if bar is None:
                bar = shown.enter_context(
                    click.progressbar(length=of, label=label, file=sys.stderr, hidden=not sys.stderr.isatty())
                )
            bar.update(done - bar.pos)
            if done >= of:  # so that what is printed next has a line of its own
                shown.close()
                bar = None

        yield tell


def _lines(label: str) -> Tell:
    last = -1

    def tell(done: int, of: int) -> None:
        nonlocal last
        part = 100 * done // of if of else 100
        if part != last:
            last = part
            click.echo(json.dumps({"what": label, "done": done, "of": of}), err=True)

    return tell


@contextmanager
def steps() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each step of the block.

    Yields:
        What is to be called as a step goes on: what is counted, how many are done, and of how many.
    """
    with ExitStack() as shown:
        of_now = ""
        now: Tell | None = None

        def tell(what: str, done: int, of: int) -> None:
            nonlocal of_now, now
            if now is None or what != of_now:
                shown.close()
                of_now, now = what, shown.enter_context(progress(what))
            now(done, of)

        yield tell


def counted(items: Iterable[_One], of: int, tell: Tell) -> Iterator[_One]:
    """Pass items on, and report each as done once the next one is asked for.

    Args:
        items: The items.
        of: How many there will be.
        tell: What to call with how many are done, and of how many.
    """
    for done, item in enumerate(items, start=1):
        yield item
        tell(done, of)
