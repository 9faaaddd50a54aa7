"""What is wrong with settings, in words: one clause per fault, with the way out of the common ones."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedretina.settings.choice import Choice

_MISSPELT, _ALIKE = 0.8, 0.6  # of difflib; "batchsize" and "batch_size" are alike by 0.95, "rounds" and "run" by 0.67
_QUOTE = "'"
_DEEPEST = 8  # levels of settings that a name is looked for in


def settings_faults(error: ValidationError, root: str, model: type[BaseModel], prefix: str = "") -> str:
    """Name each setting that cannot be used, and why.

    Args:
        error: What validation found.
        root: What a fault of the settings as a whole is said of.
        model: Class of the settings that were validated: an unknown name is set beside those that it knows.
        prefix: Where these settings stand in their file, such as "data."; empty at the top.
    """
    places = [_place(one["loc"], model) for one in error.errors()]
    faults = [_fault(one, place, root, prefix) for one, place in zip(error.errors(), places, strict=True)]
    # Of several forms that a setting may have, what is said of those inside is enough.
    inside = [place.keys for place in places if not place.plain]
    kept = [
        fault
        for fault, place in zip(faults, places, strict=True)
        if not (place.plain and any(keys[: len(place.keys)] == place.keys for keys in inside))
    ]
    return "; ".join(dict.fromkeys(kept))


def did_you_mean(name: str, known: Collection[str], elsewhere: Sequence[str] = ()) -> str:
    """The known name that is most alike, as a question, or all known names where none is.

    Args:
        name: What was written.
        known: What may be written.
        elsewhere: Where this very name may be written; it comes before a known name that is alike by half.
    """
    near, far = (difflib.get_close_matches(name, sorted(known), n=1, cutoff=cut) for cut in (_MISSPELT, _ALIKE))
    meant = (*near, *elsewhere, *far)
    return f"did you mean {meant[0]}?" if meant else f"it may be one of {', '.join(sorted(known))}"


class _Place(NamedTuple):
    """Where a fault lies.

    Attributes:
        keys: Its names and numbers as they stand in the file; pydantic's own names for a form are no part of it.
        names: What may be set there, where the fault is an unknown name.
        elsewhere: Where a setting of this very name stands.
        plain: Whether the form that was tried is a plain value, and no settings.
    """

    keys: tuple[int | str, ...]
    names: tuple[str, ...]
    elsewhere: tuple[str, ...]
    plain: bool


def _place(loc: Sequence[int | str], model: type[BaseModel]) -> _Place:
    now: list[Any] = [model]
    before: list[Any] = now
    keys: list[int | str] = []
    plain = False
    for part in loc:
        if part == "[key]":  # of a mapping: its name is a part of the place already
            continue
        called = [choice for choice in now if _is_called(choice, part)]
        if called:
            now, plain = called, _model(called[0]) is None
            continue
        before, plain = now, False
        now = [choice for one in now for inner in _below(one, part) for choice in _choices(inner)]
        keys.append(part)
    names = {field for choice in before if (found := _model(choice)) for field in found.model_fields}
    at = ".".join(map(str, keys))
    paths = {path for path in _paths(model, str(keys[-1])) if path != at} if keys else set()
    elsewhere = sorted(paths, key=lambda path: (path.count("."), path))
    return _Place(tuple(keys), tuple(sorted(names)), tuple(elsewhere), plain)


def _fault(error: Mapping[str, Any], place: _Place, root: str, prefix: str) -> str:
    at = prefix + ".".join(map(str, place.keys)) if place.keys else root
    if error["type"] == "extra_forbidden":
        return f"{at} is no setting: {did_you_mean(str(place.keys[-1]), place.names, place.elsewhere)}"
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"{at} has settings of its own: write them below it, as `name: value` lines"
    if error["type"] in ("tuple_type", "list_type"):
        return f"{at} is a list: write its values as `- value` lines, or in brackets"
    if error["type"] == "union_tag_not_found":
        return f"{at}.{str(error['ctx']['discriminator']).strip(_QUOTE)} must be set"
    if error["type"] == "missing":
        return f"{at} must be set"
    few = error["type"] == "too_short"
    said = f"give at least {error['ctx']['min_length']}" if few else str(error["msg"]).removeprefix("Value error, ")
    return f"{at}: {said}"


def _choices(annotation: Any) -> list[Any]:
    """The parts of a union, or the methods of an axis; the annotation itself where it is neither."""
    bare = _bare(annotation)
    if get_origin(bare) in (Union, UnionType):
        return [choice for part in get_args(bare) for choice in _choices(part)]
    if isinstance(bare, type) and issubclass(bare, Choice) and not bare.is_method():
        return list(bare.choices().values())
    return [annotation]


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _model(annotation: Any) -> type[BaseModel] | None:
    bare = _bare(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, BaseModel) else None


def _is_called(choice: Any, part: int | str) -> bool:
    """Whether a part of pydantic's place is its word for one of several forms, such as a class."""
    bare, found = _bare(choice), _model(choice)
    name = getattr(bare, "__name__", "")
    if found is None:
        return isinstance(bare, type) and not get_args(bare) and part == name
    return part == name or (isinstance(part, str) and part.endswith(f", {name}]"))


def _below(choice: Any, part: int | str) -> list[Any]:
    found = _model(choice)
    if found is not None:
        field = found.model_fields.get(str(part))
        return [] if field is None else [field.annotation]
    return [one for one in get_args(_bare(choice)) if one is not Ellipsis][-1:]  # what a list or a mapping holds


def _paths(model: type[BaseModel], name: str, prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Where else a setting of this very name stands."""
    for field, info in model.model_fields.items():
        if field == name:
            yield f"{prefix}{field}"
        if depth == _DEEPEST:
            continue
        for choice in _choices(info.annotation):
            held = _model(choice)
            listed = next(iter(get_args(_bare(choice))), None) if held is None else None
            found = _model(listed) if held is None else held
            if found is not None:
                yield from _paths(found, name, f"{prefix}{field}{'[]' if held is None else ''}.", depth + 1)
