"""Settings files in YAML, all read here: safely, within a size, and with a sentence for whatever is wrong with one.

An experiment file arrives at a site in a job, and what a site says of it goes back to the server. So each fault has two
sentences: one for home, with the file, the words in it and the line, and one that names none of these but the line.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any, NoReturn

import yaml

from fedretina.errors import SettingsError

MOST_BYTES = 262_144
"""A file of settings has a few thousand; what is larger was named by mistake, or is meant to keep a site busy."""
_MOST_NODES = 50_000  # once every alias is written out
_DEEPEST = 40
_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map", "merge")}
_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


class YamlFileError(SettingsError):
    """A file holds no settings that can be read; the message names the file and words in it, so it stays at home.

    Attributes:
        outside: The same for other ends: it names no file and none of its words.
    """

    public = False

    def __init__(self, message: str, outside: str) -> None:
        super().__init__(message)
        self.outside = outside


class _FaultError(Exception):
    """A fault before it is known of which file: the words for home, and those for other ends."""

    def __init__(self, inside: str, outside: str | None = None) -> None:
        super().__init__(inside)
        self.outside = inside if outside is None else outside


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Read a file of settings.

    Args:
        path: The file.
        what: How it is called, such as "the experiment file".

    Raises:
        YamlFileError: The file is missing, cannot be read, is too large, is no UTF-8 or no YAML, names a setting twice,
            or holds no settings.
    """
    return parse_yaml(read_text(path, what), what, path)


def read_text(path: Path, what: str) -> str:
    """Read the text of a file of settings, without looking at what it says.

    Args:
        path: The file.
        what: How it is called.

    Raises:
        YamlFileError: The file is missing, cannot be read, is too large, or is no UTF-8.
    """
    try:
        return _text(_bytes(path))
    except _FaultError as fault:
        _refuse(fault, what, path)


def parse_yaml(text: str, what: str, path: Path | None = None) -> dict[str, Any]:
    """Read settings from text.

    Args:
        text: The text.
        what: How the file that it comes from is called.
        path: That file, for the sentence; None where there is none.

    Raises:
        YamlFileError: The text is no YAML, names a setting twice, or holds no settings.
    """
    try:
        parsed = _parsed(text)
    except _FaultError as fault:
        _refuse(fault, what, path)
    if isinstance(parsed, dict):
        return parsed
    kind = "is empty" if parsed is None else "holds a list" if isinstance(parsed, list) else "holds a single value"
    told = f"holds no settings: it {kind}, where `name: value` lines should stand."
    raise YamlFileError(f"{_named(what, path)} {told}", f"{what} {told}")


def _refuse(fault: _FaultError, what: str, path: Path | None) -> NoReturn:
    raise YamlFileError(
        f"{_named(what, path)} cannot be read: {fault}", f"{what} cannot be read: {fault.outside}"
    ) from fault.__cause__


def _named(what: str, path: Path | None) -> str:
    return what if path is None else f"{what} {path}"


def _bytes(path: Path) -> bytes:
    try:
        with open(path, "rb") as handle:
            content = handle.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _FaultError("there is no such file: correct the path, or write the file.") from error
    except IsADirectoryError as error:
        raise _FaultError("it is a folder: name the file in it.") from error
    except PermissionError as error:
        raise _FaultError("it may not be read by this user: change its rights.") from error
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        cause = getattr(error, "strerror", None) or str(error)
        raise _FaultError(f"{cause}: see to the disk, or the path.", "the disk does not give it.") from error
    if len(content) > MOST_BYTES:
        raise _FaultError(f"it has more than {MOST_BYTES} bytes: settings need far fewer, so name another file.")
    return content


def _text(content: bytes) -> str:
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            raise _FaultError(f"it is saved in {name}: save it as UTF-8.")
    if b"\0" in content:
        raise _FaultError("it is no text file: name the file of settings.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _FaultError(f"line {line} holds a character that is not UTF-8: save the file as UTF-8.") from error


class _Loader(yaml.SafeLoader):
    """Plain values alone, as people mean them.

    A date is text, since a run may be named after a day. `yes`, `no`, `on` and `off` are words, as a grade may be; what
    is asked for true or false takes them all the same, and what is asked for a number does not take them for 1 or 0.
    So is 010, which would be 8, and 12:30, which would be 750.
    """


_NARROWER = {
    "tag:yaml.org,2002:bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"),
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, _NARROWER.get(tag, pattern)) for tag, pattern in resolvers if tag in _PLAIN]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parsed(text: str) -> Any:
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _Looked().at(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "the file"
        tab = "'\\t'" in (error.problem or "")
        mend = "indent with blanks, not with a tab." if tab else "mend it there or in the line above."
        raise _FaultError(
            f"{place} is no YAML ({error.problem or error.context}): {mend}", f"{place} is no YAML: {mend}"
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _FaultError(f"line {line} holds a character that no text has: take it out.") from error
    except (yaml.YAMLError, ValueError, LookupError) as error:  # such as `!!int word`
        raise _FaultError(f"a value in it is none ({error}): mend it.", "a value in it is none: mend it.") from error
    except RecursionError as error:
        raise _FaultError(_TOO_DEEP) from error


_TOO_DEEP = f"its settings are nested more than {_DEEPEST} levels deep: write them flatter."


class _Looked:
    """What stands in a file before anything is made of it: names twice, tags, and how much it would become."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._inside: set[int] = set()

    def at(self, node: yaml.Node, depth: int = 0) -> int:
        """Number of nodes that a node stands for, every alias written out."""
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        if id(node) in self._inside:
            raise _FaultError(f"{_line(node)} holds itself, by an alias: write it out.")
        if depth > _DEEPEST:
            raise _FaultError(_TOO_DEEP)
        if node.tag not in _PLAIN:
            raise _FaultError(
                f"{_line(node)} has the tag {node.tag.removeprefix('tag:yaml.org,2002:')!r}: write a plain value.",
                f"{_line(node)} has a tag: write a plain value.",
            )
        self._inside.add(id(node))
        below: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            _require_once(node)
            below = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            below = list(node.value)
        size = 1 + sum(self.at(part, depth + 1) for part in below)
        self._inside.discard(id(node))
        if size > _MOST_NODES:
            raise _FaultError("its aliases stand for too many values: write fewer.")
        self._sizes[id(node)] = size
        return size


def _require_once(node: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _FaultError(f"{_line(key)} has a name that is no plain word: write `name: value`.")
        if key.tag.endswith(":merge"):
            continue
        name, line = (key.tag, key.value), key.start_mark.line + 1
        if name in lines:
            first = f"lines {lines[name]} and {line}" if lines[name] != line else f"line {line}"
            raise _FaultError(
                f"{key.value!r} is set twice, in {first}: keep one of them.",
                f"a setting is set twice, in {first}: keep one of them.",
            )
        lines[name] = line


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
