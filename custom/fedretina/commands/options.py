"""Kinds of options that several commands take: names of runs and sites, checked before anything is made."""

from __future__ import annotations

from typing import Any

import click

from fedretina.errors import FedretinaError
from fedretina.exchange.stamp import require_name, require_sites


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


RUN, SITE, JOB = NameType("run"), NameType("site"), NameType("job")
SITES, SITE_FILE = SitesType(), SiteFileType()
