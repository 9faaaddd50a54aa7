"""A run in this process that is killed at every write and started again, until it ends."""

from __future__ import annotations

import hashlib
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
    folder: Path,
    which: Callable[[Path], bool] = lambda path: True,
    afterwards: Callable[[], None] = lambda: None,
) -> tuple[Ended, int]:
    """Start a run again and again; each time it dies at its next write, once before and once after each file.

    A start that would find what a start before it found does what that one did. So it does not die where the folder
    holds what it held at an earlier death: mostly before a file, right after the one before it.

    Args:
        run: Starts the run, or goes on with it.
        folder: Where all that it keeps lies.
        which: The files at whose writes it dies.
        afterwards: What is looked at after each death.

    Returns:
        What the run gave at its end, and at how many places it died or had died with the same on the disk.
    """
    real, places, left = storage._replace, set(), set()

    def dying(path: Path, write: Callable[[Path], None], *how: bool) -> None:
        for when in ("before", "after"):
            if when == "after":
                real(path, write, *how)
            if which(path) and (when, path) not in places:
                places.add((when, path))
                if (found := _content(folder)) not in left:
                    left.add(found)
                    raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "_replace", dying)
        while True:
            try:
                return run(), len(places)
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


def _content(folder: Path) -> str:
    """A digest of all names below a folder and of what is in the files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path.relative_to(folder)}:{path.is_file()}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()
