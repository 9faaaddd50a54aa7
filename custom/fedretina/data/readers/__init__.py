"""Readers of public data sets, one file each; a file ends with its `SET`, and this module only collects them.

A package of somebody else's adds a set by an entry point of the group `fedretina.readers` that names its `PublicSet`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import MappingProxyType

from fedretina.data.readers.survey import PublicSet
from fedretina.errors import SettingsError

GROUP = "fedretina.readers"


@cache
def readers() -> Mapping[str, PublicSet]:
    """All sets that can be read, by name: those of this folder in alphabetical order, then those of other packages.

    Raises:
        SettingsError: An entry point of another package cannot be used, or its name is taken.
    """
    sets = {public_set.name: public_set for public_set in _own()}
    for name, public_set in _of_others():
        if public_set.name in sets:
            raise SettingsError(
                f"the entry point {name!r} of {GROUP} brings a reader {public_set.name!r}, and there is one of that "
                "name: rename it, or uninstall its package."
            )
        sets[public_set.name] = public_set
    return MappingProxyType(sets)


def reader(name: str) -> PublicSet:
    """A public set by its name.

    Raises:
        SettingsError: There is no reader of that name.
    """
    if name not in readers():
        raise SettingsError(f"there is no reader {name!r}: use one of {list(readers())}, or write a manifest.")
    return readers()[name]


def _own() -> Iterator[PublicSet]:
    for module in sorted(iter_modules(__path__), key=lambda module: module.name):
        public_set = getattr(import_module(f"{__name__}.{module.name}"), "SET", None)
        if public_set is not None:  # the others help readers
            yield public_set


def _of_others() -> Iterator[tuple[str, PublicSet]]:
    for point in entry_points(group=GROUP):
        try:
            public_set = point.load()
        except Exception as error:  # whatever the code of a stranger raises
            raise SettingsError(
                f"the entry point {point.name!r} of {GROUP} cannot be loaded ({type(error).__name__}: {error}): mend "
                "or uninstall its package."
            ) from error
        if not isinstance(public_set, PublicSet):
            raise SettingsError(
                f"the entry point {point.name!r} of {GROUP} names a {type(public_set).__name__}, expected a PublicSet: "
                "mend or uninstall its package."
            )
        yield point.name, public_set
