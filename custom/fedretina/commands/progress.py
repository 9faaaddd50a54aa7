"""How far a command is: a bar on the error stream of a terminal, and nothing in a log, which it would only litter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import click

Tell = Callable[[int, int], None]
"""Takes how many are done, and of how many."""
_One = TypeVar("_One")


@contextmanager
def progress(label: str) -> Iterator[Tell]:
    """Show a bar while the block runs.

    Args:
        label: What is counted, such as "images".

    Yields:
        What is to be called after each one; the first call draws the bar, the last ends it.
    """
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


def counted(found: Iterable[_One], of: int, tell: Tell) -> Iterator[_One]:
    """Hand on what comes, and tell of each once the next is asked for.

    Args:
        found: What comes.
        of: How many there will be.
        tell: Whom to tell.
    """
    for done, one in enumerate(found, start=1):
        yield one
        tell(done, of)
