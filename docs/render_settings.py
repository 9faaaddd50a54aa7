"""Renders the tables of docs/settings.md from the settings' own classes, so that the page cannot lie.

    python docs/render_settings.py

The page's prose is written by hand; what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` comes from here.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedretina.flare.controller import RoundController
from fedretina.networks.build import build_on_meta
from fedretina.networks.layout import Layout, layouts_of
from fedretina.rows import ROWS
from fedretina.rows.recipes import RECIPES
from fedretina.settings.choice import Choice
from fedretina.settings.encoder import EncoderTraits
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import NetworkSettings
from fedretina.settings.policy import GaussianNoise, SvtNoise
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteSettings
from fedretina_papers.markdown import between

# Settings of the run that a phase may change: their tables stand once.
_TOLD_ABOVE = ("phases[].training", "phases[].augment")
PAGE = Path(__file__).with_name("settings.md")
_WORDS = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text", Path: "path"}


def render(page: str) -> str:
    """Return the page with every block written anew.

    Raises:
        ValueError: A block is not in the page exactly once.
    """
    for name, block in BLOCKS.items():
        page = between(page, f"<!-- begin {name} -->", f"<!-- end {name} -->", block())
    return page


def described(documented: Any, section: str) -> dict[str, str]:
    """Read the entries of a docstring's `Attributes` or `Args` section, by name, in Google style."""
    text = inspect.getdoc(documented) or ""
    found = re.search(rf"^{section}:\n((?:[ ]+.*\n?|\n)+)", text, re.MULTILINE)
    entries: dict[str, str] = {}
    name = ""
    for line in (found.group(1) if found else "").splitlines():
        entry = re.match(r"    (\w+): (.*)", line)
        if entry:
            name, entries[entry.group(1)] = entry.group(1), entry.group(2)
        elif name:
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries


def model_tables(model: type[BaseModel], prefix: str, file_of: Mapping[str, str]) -> str:
    """Render a table for a model's plain settings, then one for each model inside it.

    Args:
        model: The settings' class.
        prefix: Where its settings stand in the file, such as `network.`; empty at the top.
        file_of: Title of a model's section by prefix.
    """
    meanings = _meanings(model)
    lines, inner = [], []
    for name, field in model.model_fields.items():
        at = f"{prefix}{name}"
        axis = _axis(field.annotation)
        if axis is not None:
            lines.append(_row(*_cells(at, field, meanings)))
            inner += _axis_tables(axis, at)
            continue
        below = _model_inside(field.annotation)
        if below is not None and not isinstance(field.default, tuple):
            inner.append(model_tables(below, f"{prefix}{name}.", file_of))
            continue
        lines.append(_row(*_cells(at, field, meanings)))
        if below is not None:
            inner.append(model_tables(below, f"{prefix}{name}[].", file_of))
        elif f"{prefix}{name}" in _TOLD_ABOVE:
            continue
        elif optional := _model_or_none(field.annotation):
            inner.append(model_tables(optional, f"{prefix}{name}.", file_of))
    head = _head(file_of.get(prefix, f"`{prefix.rstrip('.')}`"), model)
    table = [_row("setting", "values", "default", "meaning"), "|---|---|---|---|", *lines]
    return "\n".join([head, *(table if lines else []), *([""] if lines and inner else []), "\n\n".join(inner)]).rstrip()


def _axis(annotation: Any) -> type[Choice] | None:
    """The axis that a field's method is chosen from; None where it is no such choice."""
    for part in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,):
        bare = get_args(part)[0] if hasattr(part, "__metadata__") else part
        if inspect.isclass(bare) and issubclass(bare, Choice):
            return bare
    return None


def _axis_tables(axis: type[Choice], at: str) -> list[str]:
    """The section of what an axis's methods read, what several read alike told once; none where they read nothing."""
    told: dict[str, dict[tuple[str, ...], list[str]]] = {}
    inner: dict[str, list[str]] = {}
    for method, choice in axis.choices().items():
        meanings = _meanings(choice)
        for name, field in choice.model_fields.items():
            if name != axis.key:
                told.setdefault(name, {}).setdefault(_cells(f"{at}.{name}", field, meanings), []).append(f"`{method}`")
                deeper = _axis(field.annotation)
                inner[name] = [] if deeper is None else _axis_tables(deeper, f"{at}.{name}")
    if not told:
        return []
    rows = ((setting, methods, rest) for same in told.values() for (setting, *rest), methods in same.items())
    lines = [_row(setting, ", ".join(methods), *rest) for setting, methods, rest in rows]
    title = _row("setting", f"read with `{axis.key}`", "values", "default", "meaning")
    table = "\n".join([_head(f"`{at}`", axis), title, "|---|---|---|---|---|", *lines])
    return [table, *(one for below in inner.values() for one in below)]


def _cells(at: str, field: FieldInfo, meanings: Mapping[str, str]) -> tuple[str, ...]:
    """Name, values, default and meaning of a setting; of an axis, of the setting that names its method."""
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    meaning = meanings.get(at.rpartition(".")[2], "")
    axis = _axis(field.annotation)
    if axis is not None:
        said = [f"`{name}`: {_summary(choice).rstrip('.')}" for name, choice in axis.choices().items()]
        names = ", ".join(f"`{name}`" for name in axis.choices())
        shown = _shown(None if default is None else getattr(default, axis.key))
        return f"`{at}.{axis.key}`", names, shown, f"{meaning or _summary(axis)} {'. '.join(said)}."
    values = "[an encoder](#encoders)" if at == "network.encoder" else _values(field)
    return f"`{at}`", values, "" if field.is_required() else _shown(default), meaning


def rows_table() -> str:
    """Render what each row of the table of methods fixes."""
    lines = ["| row | method | what it fixes |", "|---|---|---|"]
    for name, row in ROWS.items():
        fixed = ", ".join(f"`{setting}: {value}`" for setting, value in _flat(row.settings))
        lines.append(f"| `{name}` | {row.title} ({row.paper}) | {fixed} |")
    return "\n".join(lines)


def recipes_table() -> str:
    """Render what each recipe fixes."""
    lines = [_row("recipe", "for", "what it fixes", "besides"), "|---|---|---|---|"]
    for name, recipe in RECIPES.items():
        fixed = ", ".join(f"`{setting}: {value}`" for setting, value in _flat(recipe.settings))
        more = "; ".join(
            f"{extra.where}: " + ", ".join(f"`{setting}: {value}`" for setting, value in _flat(extra.settings))
            for extra in recipe.besides
        )
        lines.append(_row(f"`{name}`", recipe.title, fixed, more))
    return "\n".join(lines)


def encoders_table() -> str:
    """Render the encoders: their weights, stages, and what there is to start from."""
    titles = ("encoder", "million weights", "features", "channels after each stage", "made for (px)")
    lines = [_row(*titles, "published weights"), "|---|---|---|---|---|---|"]
    for name, traits in EncoderTraits.choices().items():
        encoder = build_on_meta(NetworkSettings(encoder=name)).encoder
        weights = f"{sum(p.numel() for p in encoder.parameters()) / 1e6:.1f}"
        published = ["`source: package`, installed with fedretina"] if traits.packaged else []
        published += [_form(layout, name) for layout in layouts_of(name)]
        widths, side = ", ".join(map(str, encoder.widths)), "" if traits.side is None else str(traits.side)
        cells = (f"`{name}`", weights, str(encoder.features), widths, side)
        lines.append(_row(*cells, "; ".join(published) or "none fit"))
    return "\n".join(lines)


def _form(layout: Layout, name: str) -> str:
    """A form in which weights are published, with the names of torchvision's files."""
    if not layout.title.startswith("torchvision"):
        return layout.title
    from torchvision.models import get_model_weights

    files = (f"`{Path(one.url).name}`" for one in get_model_weights(layout.theirs or name))
    return f"{layout.title} ({', '.join(files)})"


def controller_table() -> str:
    """Render the arguments of the round's controller."""
    meanings = described(RoundController, "Args")
    lines = [_row("argument", "default", "meaning"), "|---|---|---|"]
    for name, parameter in inspect.signature(RoundController).parameters.items():
        default = "must be given" if parameter.default is parameter.empty else _shown(parameter.default)
        lines.append(_row(f"`{name}`", default, meanings.get(name, "")))
    return "\n".join(lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "experiment": lambda: model_tables(Experiment, "", {"": "The run", "phases[].": "`phases`, a list"}),
    "rows": rows_table,
    "recipes": recipes_table,
    "encoders": encoders_table,
    "controller": controller_table,
    "site": lambda: model_tables(SiteSettings, "", {"": "The site"}),
    "noise": lambda: "\n\n".join(
        model_tables(model, "policy.noise.", {"policy.noise.": f"`policy.noise` with `kind: {kind}`"})
        for kind, model in (("gaussian", GaussianNoise), ("svt", SvtNoise))
    ),
    "scheme": lambda: model_tables(GradingScheme, "", {"": "A grading scheme of one's own"}),
}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in settings.items():
        deeper = isinstance(value, Mapping)
        pairs += _flat(value, f"{prefix}{name}.") if deeper else [(f"{prefix}{name}", value)]
    return pairs


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    meanings: dict[str, str] = {}
    for above in reversed(model.mro()):  # what a class inherits, it need not say again
        meanings |= described(above, "Attributes") if "__doc__" in vars(above) else {}
    return meanings


def _head(title: str, model: type[BaseModel]) -> str:
    source = inspect.getmodule(model)
    path = f"../custom/{source.__name__.replace('.', '/')}.py" if source else ""
    return f"### {title}\n\n{_summary(model)} ([{model.__name__}]({path}))\n"


def _summary(model: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(model) or "").split("\n\n")[0].split())


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _model_inside(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, or a tuple of; None where it may also be something else."""
    if get_origin(annotation) is tuple:
        annotation = get_args(annotation)[0]
    return annotation if inspect.isclass(annotation) and issubclass(annotation, BaseModel) else None


def _model_or_none(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds if it is not none."""
    parts = [part for part in get_args(annotation) if part is not NoneType]
    optional = get_origin(annotation) in (Union, UnionType) and len(parts) == 1
    return _model_inside(parts[0]) if optional else None


def _values(field: FieldInfo) -> str:
    return _type(field.annotation) + _range(field.metadata)


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        text = ", ".join(f"`{choice}`" for choice in parts)
    elif origin in (Union, UnionType):
        text = " or ".join(_type(part) for part in parts if part is not NoneType)
    elif origin is dict:
        text = f"{_type(parts[0])}, each with a {_type(parts[1])}"
    elif origin in (tuple, frozenset):
        text = f"list of {_type(parts[0])}"
    elif hasattr(annotation, "__metadata__"):
        text = _type(parts[0]) + _range(annotation.__metadata__)
    elif issubclass(annotation, Enum):
        text = ", ".join(f"`{member.value}`" for member in annotation)
    elif issubclass(annotation, BaseModel):
        text = f"a {annotation.__name__}"
    else:
        text = _WORDS[annotation]
    return text


def _range(metadata: Any) -> str:
    words: dict[str, Any] = {}
    for limit in metadata:
        for name in ("ge", "gt", "le", "lt", "pattern"):
            if getattr(limit, name, None) is not None:
                words[name] = getattr(limit, name)
    text = ""
    if "ge" in words or "gt" in words:
        text += f", {words['ge']:g} or more" if "ge" in words else f", above {words['gt']:g}"
    if "le" in words or "lt" in words:
        text += f", at most {words['le']:g}" if "le" in words else f", below {words['lt']:g}"
    if "pattern" in words:
        text += f", matching `{words['pattern']}`"
    return text


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, tuple):
        # Of an entry only what is set: the rest stands in its own table.
        value = [entry.model_dump(exclude_defaults=True) if isinstance(entry, BaseModel) else entry for entry in value]
    return f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
