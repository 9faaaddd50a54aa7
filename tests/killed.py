"""A run in this process that is killed at every write and started again, until it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from fedretina import storage

Ended = TypeVar("Ended")


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def killed_at_every_write(
    run: Callable[[], Ended],
    which: Callable[[Path], bool] = lambda path: True,
    afterwards: Callable[[], None] = lambda: None,
) -> tuple[Ended, int]:
    """Start a run again and again; each time it dies at its next write, once before and once after each file.

    Args:
        run: Starts the run, or goes on with it.
        which: The files at whose writes it dies.
        afterwards: What is looked at after each death.

    Returns:
        What the run gave at its end, and how often it died.
    """
    real, died = storage._replace, set()

    def dying(path: Path, write: Callable[[Path], None], *how: bool) -> None:
        for when in ("before", "after"):
            if when == "after":
                real(path, write, *how)
            if which(path) and (when, path) not in died:
                died.add((when, path))
                raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "_replace", dying)
        while True:
            try:
                return run(), len(died)
            except Killed:
                afterwards()


def killed_at_write(run: Callable[[], object], number: int) -> None:
    """Let a run die before one of its writes.

    Args:
        run: Starts the run.
        number: How many writes come before.
    """
    real, left = storage._replace, iter(range(number))

    def dying(path: Path, write: Callable[[Path], None], *how: bool) -> None:
        if next(left, None) is None:
            raise Killed
        real(path, write, *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "_replace", dying)
        with pytest.raises(Killed):
            run()
