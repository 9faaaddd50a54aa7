"""A choice among methods, each with settings of its own: what the chosen one does not read is refused, not overlooked.

An axis is a class below `Choice`, and each of its methods a class below the axis that says its name:

    class CorrectionSettings(Choice): ...
    class FedProxSettings(CorrectionSettings):
        name: Literal["fedprox"] = "fedprox"
        mu: float = 0.01

A file then holds `correction: {name: fedprox, mu: 0.1}`, or `correction: fedprox` where the defaults will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedretina.errors import SettingsError

GROUP = "fedretina.parts"
"""Entry points of other packages: each is a module that defines settings and registers the parts they choose."""


class Choice(BaseModel):
    """Settings of one method among several.

    Attributes:
        key: Name of the setting that tells the methods of the axis apart.
        default: Method of the axis where a file names none; None where it must.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    key: ClassVar[str] = "name"
    default: ClassVar[str | None] = None

    @classmethod
    def choices(cls) -> dict[str, type[Self]]:
        """The methods below a class by name, in the order in which they were defined.

        Raises:
            SettingsError: Two methods have one name.
        """
        found: dict[str, type[Self]] = {}
        for one in _below(cls):
            if one.is_method():
                name = str(one.model_fields[cls.key].default)
                other = found.setdefault(name, one)
                # A module that is imported anew, as by a notebook, replaces its own.
                if (other.__module__, other.__qualname__) != (one.__module__, one.__qualname__):
                    raise SettingsError(
                        f"{cls.key} {name!r} stands for {_place(other)} and for {_place(one)}: give one of the two "
                        "another name."
                    )
                found[name] = one
        return found

    @classmethod
    def named(cls, name: str, kind: str) -> type[Self]:
        """The method of a name; other packages are asked only for a name that the product does not have.

        Args:
            name: As a file has it.
            kind: What a method of the axis is called in a sentence, such as "encoder".

        Raises:
            SettingsError: There is none of that name.
        """
        known = cls.choices()
        if name not in known:
            load_parts()
            known = cls.choices()
        if name not in known:
            raise SettingsError(f"there is no {kind} {name!r}: use one of {', '.join(known)}.")
        return known[name]

    @classmethod
    def axis(cls) -> type[Choice]:
        """The class of the axis that a method stands on."""
        above = cls.mro()
        return cast(type[Choice], above[above.index(Choice) - 1])

    @classmethod
    def is_method(cls) -> bool:
        """Whether the class is a method's, and not an axis or what some methods have in common."""
        field = cls.model_fields.get(cls.key)
        return field is not None and not field.is_required()

    @classmethod
    def of(cls, given: Any) -> Self:
        """Settings from what a file gives: a name, or a mapping with one.

        Raises:
            ValidationError: They cannot be used.
        """
        return cls.model_validate(given)

    @model_validator(mode="wrap")
    @classmethod
    def _chosen(cls, given: Any, own: ModelWrapValidatorHandler[Self]) -> Self:
        if cls.is_method() or isinstance(given, cls):
            return own(given)
        asked = {cls.key: given} if isinstance(given, str) else given
        if not isinstance(asked, Mapping):
            return own(given)
        choices = cls.choices()
        name = asked.get(cls.key, cls.default)
        if isinstance(name, str) and name not in choices:
            load_parts()
            choices = cls.choices()
        if not isinstance(name, str) or name not in choices:
            listed = ", ".join(map(repr, choices))
            raise _faults(cls, {cls.key: ("choice_unknown", f"it is {name!r}, but may be {listed}")}, asked)
        chosen = choices[name]
        unread = {}
        for setting in map(str, asked):
            readers = [other for other, one in choices.items() if setting in one.model_fields]
            if readers and setting not in chosen.model_fields:
                unread[setting] = (repr(name), readers)
        if unread:
            raise unread_faults(cls, unread, asked)
        return chosen.model_validate({**asked, cls.key: name})


@dataclass(frozen=True)
class ReadBy:
    """Stands in the type of a plain setting that is read under some values of another one beside it alone.

    Attributes:
        key: Name of the other setting.
        values: Under which of its values this one is read.
    """

    key: str
    values: tuple[str, ...]


class ReadSettings(BaseModel):
    """Settings of which some are read under a value of another alone, as their types say (`ReadBy`).

    Such a setting is refused where it is not read, unless it has its default: stored settings are written out in full.
    """

    @classmethod
    def read_under(cls) -> dict[str, ReadBy]:
        """The settings that are not always read, by name, and under what they are."""
        held = ((name, one) for name, field in cls.model_fields.items() for one in field.metadata)
        return {name: one for name, one in held if isinstance(one, ReadBy)}

    @classmethod
    def still_read(cls, low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
        """What is left of raw settings when others are laid over them: what the upper ones do not read falls away."""
        lost = {name for name, by in cls.read_under().items() if by.key in high and high[by.key] not in by.values}
        return {name: value for name, value in low.items() if name not in lost}

    @model_validator(mode="after")
    def _all_is_read(self) -> Self:
        unread = {}
        for name, by in self.read_under().items():
            chosen, default = (
                getattr(self, by.key),
                type(self).model_fields[name].get_default(call_default_factory=True),
            )
            if chosen not in by.values and getattr(self, name) != default:
                unread[name] = (f"{by.key} {chosen!r}", by.values)
        if unread:
            raise unread_faults(type(self), unread, {name: getattr(self, name) for name in unread})
        return self


class GrownSettings(BaseModel):
    """Settings to which some were added after runs had begun without them.

    Those are written out only where they are set to something else than their default, so that the digest of a run that
    does not use them is the one that it began with.

    Attributes:
        newer: Names of the settings that were added.
    """

    newer: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_new_defaults(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        same = {name for name in self.newer if getattr(self, name) == type(self).model_fields[name].get_default()}
        return {name: value for name, value in written(self).items() if name not in same}


@cache
def load_parts() -> None:
    """Import what other packages bring: the entry points of the group `fedretina.parts`, once in a process.

    It is called where a name is asked for that the product does not have, never when a module is imported.

    Raises:
        SettingsError: A package's part cannot be imported.
    """
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:  # whatever the other package raises
            raise SettingsError(
                f"the part {point.name!r} ({point.value}) of another package cannot be imported "
                f"({type(error).__name__}: {error}): mend that package, or take it out."
            ) from error


def _place(one: type[Any]) -> str:
    return f"{one.__module__}.{one.__qualname__}"


def _below(cls: type[Any]) -> Iterator[type[Any]]:
    for one in cls.__subclasses__():
        yield one
        yield from _below(one)


def unread_faults(
    cls: type[BaseModel], unread: Mapping[str, tuple[str, Sequence[str]]], given: Mapping[Any, Any]
) -> ValidationError:
    """What is said of settings that the chosen method does not read.

    Args:
        cls: The class that was asked for.
        unread: By setting, the choice that does not read it, as it stands in the sentence, and those that do.
        given: What was written.
    """
    said = {
        name: (
            "choice_unread",
            f"{own} does not read it, {_joined(readers)}: leave it out, or choose one that reads it",
        )
        for name, (own, readers) in unread.items()
    }
    return _faults(cls, said, given)


def _joined(readers: Sequence[str]) -> str:
    names = [repr(one) for one in readers]
    return f"{names[0]} alone does" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} do"


def _faults(cls: type[BaseModel], said: Mapping[str, tuple[str, str]], given: Mapping[Any, Any]) -> ValidationError:
    """What is wrong with single settings, by their names, as an error that pydantic sets where they stand."""
    details = [
        InitErrorDetails(
            type=PydanticCustomError(kind, sentence),
            loc=(setting,),
            input=given.get(setting),
        )
        for setting, (kind, sentence) in said.items()
    ]
    return ValidationError.from_exception_data(cls.__name__, details, hide_input=True)
