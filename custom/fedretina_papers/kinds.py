"""Kinds of studies: what a plan's `paper` decides, how it is read and run, and which page its results make."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedretina.errors import SettingsError
from fedretina_papers.paper_size.limits import Limits

if TYPE_CHECKING:  # the runner reads plans, and plans ask here for their kind
    from fedretina_papers.runner import Told

_HOME = "fedretina_papers.studies"
DEFAULT = "feduaa"
"""The kind of a plan that names none."""
Tell = Callable[["Told"], None]
Read = Callable[[str, int, int], None]
Render = Callable[[Path, Path, Path], None]
"""Writes the page: takes the study's folder, the page, and the folder of its pictures."""


class Compares(NamedTuple):
    """What a paper's own comparison differs by from the others'.

    Attributes:
        pooled: Whether its figures are of the test images of all sites together, and not of each site.
        side_by_side: Whether its methods are timed side by side, beside what each row costs.
    """

    pooled: bool = False
    side_by_side: bool = False


ALIKE = Compares()


class Prepared(NamedTuple):
    """A benchmark whose plan was checked.

    Attributes:
        run: Runs what is missing; takes the folder, runs at a time, whom to tell of runs and whom of images that are
            read, and gives why runs are missing.
        compare: Compares what was answered in the folder, where the answers are there.
        cases: Writes single cases for the eyes at this machine; takes the folder and the page, says whether there were.
    """

    run: Callable[[Path, int, Tell, Read], dict[str, str]]
    compare: Callable[[Path], None]
    cases: Callable[[Path, Path], bool]


class Kind(NamedTuple):
    """A kind of study.

    Attributes:
        prepare: Checks a plan's settings, and what is asked of the call.
        render: Writes the page.
        unrun: Whether there is a page before anything has run.
        unfinished: Names of folders that hold no results, such as those of runs that have not ended, and of caches.
        compares: What its comparison differs by.
    """

    prepare: Callable[[Mapping[str, Any], Limits], Prepared]
    render: Render
    unrun: bool = False
    unfinished: tuple[str, ...] = ()
    compares: Compares = ALIKE


class _Registered(NamedTuple):
    kind: Kind
    by: str


_KINDS: dict[str, _Registered] = {}


def register(name: str, kind: Kind, by: str) -> None:
    """Say what plans with this `paper` are.

    Args:
        name: The plan's `paper`.
        kind: What they are.
        by: File of the module; one that is run anew replaces its own.

    Raises:
        SettingsError: Another module has registered the name.
    """
    if name in _KINDS and _KINDS[name].by != by:
        raise SettingsError(f"there is a study {name!r} already: give yours another name.")
    _KINDS[name] = _Registered(kind, by)


def packaged() -> None:
    """Have the studies of the package register themselves, so that none of one's own takes a name of theirs."""
    for module in pkgutil.iter_modules(import_module(_HOME).__path__, f"{_HOME}."):
        import_module(module.name)


def kind_of(paper: str) -> Kind:
    """The kind that a plan's `paper` names.

    Raises:
        SettingsError: There is no such kind.
    """
    if paper not in _KINDS:
        packaged()
    if paper not in _KINDS:
        raise SettingsError(f"paper is {paper!r}: a benchmark's page is one of {', '.join(sorted(_KINDS))}.")
    return _KINDS[paper].kind


def without_pictures(write: Callable[[Path, Path], None]) -> Render:
    """A page that shows no pictures."""
    return lambda out, page, pictures: write(out, page)


def nothing_compared(_out: Path) -> None:
    """Comparison of a study whose page compares by itself, or not at all."""


def no_cases(_out: Path, _page: Path) -> bool:
    """Single cases of a study that shows none."""
    return False
