"""A run in this process under which the power goes again and again, between any two waits for the disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from fedretina import storage
from killed import Killed

Ended = TypeVar("Ended")
_File = tuple[int, int]  # a number of a file is given again, its number and time together are not


class Disk:
    """What a folder holds for sure: contents that were waited for, under names that were waited for.

    All else may be there or not, a name without its content, one name without another: what a cut leaves is drawn.

    Args:
        folder: The folder, with all below it.
        draw: For what a cut leaves.
    """

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self._folder, self._draw = folder, draw
        self._contents: dict[_File, bytes] = {}
        self._names: dict[Path, _File] = {}

    def sync(self, path: Path) -> None:
        """Wait for a file's content, or for the names in a folder."""
        if path.is_file():
            self._contents[_file(path)] = path.read_bytes()
        else:
            kept = {known: file for known, file in self._names.items() if known.parent != path}
            self._names = kept | {one: _file(one) for one in path.iterdir() if _lasting(one)}

    def cut(self) -> None:
        """Take what a power cut takes."""
        there = {path: _file(path) for path in self._folder.rglob("*") if _lasting(path)}
        for path in sorted({*there, *self._names}):
            possible: list[bytes | None] = []
            for file in {self._names.get(path), there.get(path)}:
                if file is None:
                    possible.append(None)
                elif file in self._contents:
                    possible.append(self._contents[file])
                else:
                    possible += [b"", path.read_bytes() if there.get(path) == file else b""]
            left = self._draw.choice(possible)
            path.unlink(missing_ok=True)
            if left is not None:
                path.write_bytes(left)
        self._contents, self._names = {}, {}
        for path in self._folder.rglob("*"):
            if _lasting(path):
                self.sync(path)
                self._names[path] = _file(path)


def survives_power_cuts(run: Callable[[], Ended], folder: Path, seed: int, most: int) -> tuple[Ended, int]:
    """Start a run again and again; each time the power goes after some waits for the disk, before or after the last.

    Args:
        run: Starts the run, or goes on with it.
        folder: Where all that it keeps lies.
        seed: Of what is drawn.
        most: Waits that a start sees at most.

    Returns:
        What the run gave at its end, and how often the power went.
    """
    draw, real, cuts = random.Random(seed), storage.sync, 0
    disk = Disk(folder, draw)

    def dying(path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0 and draw.random() < 0.5:
            raise Killed
        real(path)
        disk.sync(path)
        if left == 0:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "sync", dying)
        while True:
            left = draw.randint(1, most)
            try:
                return run(), cuts
            except Killed:
                disk.cut()
                cuts += 1


def _file(path: Path) -> _File:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _lasting(path: Path) -> bool:
    """Whether it is a file that outlives its round and the process."""
    return path.is_file() and path.name != "lock" and not path.name.startswith(".") and path.parent.name != "spool"
