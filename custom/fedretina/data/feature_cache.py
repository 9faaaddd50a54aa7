"""What frozen stages make of images, kept on the site's disk: rows that are appended, and an index that names them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import StateError
from fedretina.locks import folder_lock
from fedretina.storage import read_json, write_json

_log = logging.getLogger(__name__)
_FORMAT = 1
_LOCK_WAIT_S = 3600.0
_TOGETHER = 64  # rows that are computed before they are written
_NOTED = 64 * 1024**2  # bytes after which the index is written, so that a kill costs no more than them
_SPARE = 1024**3  # bytes of the disk that are left to others
Wanted = tuple[str, int]
"""SHA-256 of an image's pixels, and its orientation (`data.augment.oriented`)."""
Rows = NDArray[np.float16]


class FeaturePlace(NamedTuple):
    """Where a site keeps what frozen stages make of its images.

    Attributes:
        folder: The folder for all encoders; it holds what was computed from patients' images.
        images: Names the list of images and their transforms: those of other lists lie beside, by other names.
        listed: Digests of the list's images, so that rows of others are seen as stale; None where it is not known.
        most: Bytes that may be kept in the folder.
    """

    folder: Path
    images: str
    listed: frozenset[str] | None
    most: int


class FeatureCache:
    """The rows of one encoder, frozen so far, over one list of images.

    Everything that decides a row's bits is part of the key, and so of the folder's name: with other weights nothing
    that is there is read. The rows lie in one file, which only grows; the index says which row is whose and how many
    of them count, and is renamed into place last. So a kill loses what was computed since the index was last written.

    Args:
        place: Where.
        key: What decides a row beside image and orientation: encoder, stages, weights, device, versions.
        width: Numbers in a row.
    """

    def __init__(self, place: FeaturePlace, key: Mapping[str, Any], width: int) -> None:
        self._place = place
        self._key = {**key, "format": _FORMAT, "images": place.images, "width": width}
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self._folder = place.folder / digest[:16]
        self._width = width
        self._known: dict[Wanted, int] = {}
        self._rows: Rows = np.empty((0, width), np.float16)
        self._too_many: int | None = None  # so many rows could not be kept; they are not tried again, nor told again

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return 2 * self._width

    def rows(self, wanted: Sequence[Wanted], compute: Callable[[Sequence[int]], Rows]) -> tuple[Rows, list[int]] | None:
        """Give the rows of images, computing only those that are not kept.

        What cannot be kept, for want of room or because the folder cannot be used, is no fault: the log says so, and
        the caller computes as it goes.

        Args:
            wanted: Images and orientations.
            compute: Gives the rows float16 [B, L] of some of them, by their places in `wanted`.

        Returns:
            A read-only map of all rows of the cache, and where in it each one of `wanted` is; None where they cannot be
            kept.
        """
        if not all(one in self._known for one in wanted):
            if self._too_many is not None and len(wanted) >= self._too_many:
                return None
            try:
                with folder_lock(self._folder, _LOCK_WAIT_S):
                    self._open()
                    # Images that are equal to the pixel share a row.
                    places = {one: at for at, one in reversed(list(enumerate(wanted))) if one not in self._known}
                    fresh = sorted(places.values())
                    if fresh and not self._fill(wanted, fresh, compute):
                        self._too_many = len(wanted)
                        return None
                    os.utime(self._folder / "index.json")  # what was read last is removed last
            except (OSError, StateError) as error:
                said = "outputs of frozen stages cannot be kept in %s (%s): they are computed anew each time"
                _log.warning(said, self._folder, error)
                self._too_many = 0
                return None
        return self._rows, [self._known[one] for one in wanted]

    def _open(self) -> None:
        """Read the index and map the rows; a cache that is damaged or of another key is as good as none."""
        self._known, self._rows = {}, np.empty((0, self._width), np.float16)
        with suppress(StateError, OSError, ValueError, KeyError, TypeError):
            index = read_json(self._folder / "index.json")
            if index["key"] == self._key and index["rows"]:
                names = [(str(digest), int(orientation)) for digest, orientation in index["rows"]]
                path = self._folder / Path(index["file"]).name
                self._rows = np.memmap(path, np.float16, "r", shape=(len(names), self._width))
                self._known = {name: row for row, name in enumerate(names)}

    def _fill(self, wanted: Sequence[Wanted], fresh: Sequence[int], compute: Callable[[Sequence[int]], Rows]) -> bool:
        listed = self._place.listed
        asked = {digest for digest, _ in wanted}
        live = [name for name in self._known if listed is None or name[0] in listed or name[0] in asked]
        if not self._room(len(live) + len(fresh), len(fresh)):
            return False
        stale = len(self._known) - len(live)
        if stale:
            _log.info("%d rows of images that are no longer listed are removed from %s", stale, self._folder)
        path = self._current() if self._known and not stale else self._folder / f"rows-{os.urandom(8).hex()}.f16"
        with open(path, "r+b" if path.exists() else "w+b") as file:
            if stale:
                for name in live:
                    file.write(self._rows[self._known[name]].tobytes())
            file.seek(len(live) * self.row_bytes)
            file.truncate()  # what a killed process appended and no index names
            names, noted = list(live), file.tell()
            for begin in range(0, len(fresh), _TOGETHER):
                part = fresh[begin : begin + _TOGETHER]
                file.write(np.ascontiguousarray(compute(part), np.float16).tobytes())
                names += [wanted[at] for at in part]
                if file.tell() - noted >= _NOTED:
                    noted = file.tell()
                    self._note(file.fileno(), file.flush, path, names)
            self._note(file.fileno(), file.flush, path, names)
        for other in self._folder.glob("rows-*"):
            if other != path:
                other.unlink(missing_ok=True)
        self._open()
        return True

    def _current(self) -> Path:
        return self._folder / Path(read_json(self._folder / "index.json")["file"]).name

    def _note(self, number: int, flush: Callable[[], None], path: Path, names: Sequence[Wanted]) -> None:
        flush()
        os.fsync(number)
        write_json(self._folder / "index.json", {"key": self._key, "file": path.name, "rows": [list(n) for n in names]})

    def _room(self, rows: int, fresh: int) -> bool:
        """Tell how much will be written, and make room by removing what was not read for longest."""
        own, most = rows * self.row_bytes, self._place.most
        told = f"{fresh:,} of {rows:,} outputs of frozen stages, {self.row_bytes:,} bytes each"
        others = sorted(
            (path for path in self._place.folder.iterdir() if path.is_dir() and path != self._folder), key=_last_read
        )
        held = {path: sum(file.stat().st_size for file in path.glob("rows-*")) for path in others}
        free = shutil.disk_usage(self._folder).free - _SPARE
        if own > most or fresh * self.row_bytes > free + sum(held.values()):
            _log.warning(
                "%s, are not kept: %.3f GB in all, where data.feature_cache_gb allows %.3f and the disk has %.3f left. "
                "They are computed anew each time: allow more, or make room.",
                told,
                own / 1e9,
                most / 1e9,
                max(free, 0) / 1e9,
            )
            return False
        _log.info("%s, are computed and kept in %s: %.1f MB", told, self._folder, fresh * self.row_bytes / 1e6)
        for path in others:
            short = own + sum(held.values()) > most or fresh * self.row_bytes > free
            if held[path] and short and _removed(path):
                free += held.pop(path)
                _log.info("%s, not read for longest, is removed to make room", path)
        return True


def _last_read(folder: Path) -> float:
    try:
        return (folder / "index.json").stat().st_mtime
    except OSError:
        return 0.0  # it was never finished


def _removed(folder: Path) -> bool:
    """Remove the rows of another encoder, unless a process is filling them; one that reads them keeps its map."""
    try:
        with folder_lock(folder, 0):
            (folder / "index.json").unlink(missing_ok=True)
            for path in folder.glob("rows-*"):
                path.unlink(missing_ok=True)
            return True
    except (OSError, StateError):
        return False
