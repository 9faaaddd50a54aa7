"""Registers of parts: what does the work that the settings of a choice name.

A part says beside itself which settings choose it, and no table elsewhere holds it:

    @objective(TweuSettings)
    class TweuObjective: ...
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar

from fedretina.errors import SettingsError
from fedretina.settings.choice import Choice

Part = TypeVar("Part")
Made = TypeVar("Made")


class Register(Generic[Part]):
    """The parts of one axis, by the class of the settings that choose them.

    Args:
        home: The module, or the package with all its modules, that holds the product's own parts. It is imported when a
            part is first asked for that is not there yet.
        check: Refuses a part that does not fit its settings, by a SettingsError.
    """

    def __init__(self, home: str, check: Callable[[type[Choice], Part], None] = lambda settings, part: None) -> None:
        self._home = home
        self._check = check
        self._parts: dict[type[Choice], Part] = {}

    def __call__(self, settings: type[Choice]) -> Callable[[Made], Made]:
        """Register what stands below as the part that these settings choose.

        Raises:
            SettingsError: Another part is chosen by them, or it does not do what they say.
        """

        def registered(part: Made) -> Made:
            held = self._parts.get(settings)
            # A module that is imported anew, as by a notebook, replaces its own part.
            if held is not None and _place(held) != _place(part):
                raise SettingsError(
                    f"{settings.__name__} chooses two parts, {_place(held)} and {_place(part)}: give one of them "
                    "settings of its own."
                )
            self._check(settings, part)  # type: ignore[arg-type]
            self._parts[settings] = part  # type: ignore[assignment]
            return part

        return registered

    def of(self, settings: Choice) -> Part:
        """The part that settings choose.

        Raises:
            SettingsError: There is none.
        """
        if type(settings) not in self._parts:
            _import_all(self._home)
        found = self._parts.get(type(settings))
        if found is None:
            raise SettingsError(
                f"nothing is registered for {type(settings).__name__}: let the package that defines these settings "
                "import the part, too."
            )
        return found


def _place(part: object) -> str:
    return f"{getattr(part, '__module__', '?')}.{getattr(part, '__qualname__', '?')}"


def _import_all(home: str) -> None:
    module = importlib.import_module(home)
    for below in pkgutil.iter_modules(getattr(module, "__path__", [])):
        importlib.import_module(f"{home}.{below.name}")
