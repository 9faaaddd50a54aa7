"""The image cache: deterministic transforms run once, into one array that knows when it is stale."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.manifest import require_inside
from fedretina.data.modalities import image_pipeline
from fedretina.errors import DataError, StateError, StoppedError
from fedretina.locks import folder_lock
from fedretina.settings.images import ImageSettings
from fedretina.storage import read_json, write_json

CACHE_FORMAT = 2  # 2: files that are damaged inside, or hold several pictures, have no row
_LOCK_WAIT_S = 3600.0
_CHUNK = 32  # images in flight, so that a slow disk does not fill the memory


class CachedImages(NamedTuple):
    """The transformed images of a list of files.

    Attributes:
        images: uint8 [len(kept), 3, H, W], `settings.shape` each, a read-only map of the file.
        kept: Positions, in the list that was asked for, of the files that could be read, ascending; row j of
            `images` is the file at kept[j].
        bad: Names of the files that could not be read.
        digests: SHA-256 of the pixels of each row.
        path: The array's file, None when it has no row.
    """

    images: Pixels
    kept: tuple[int, ...]
    bad: tuple[str, ...]
    digests: tuple[str, ...]
    path: Path | None


class _Entry(NamedTuple):
    """What is known of a file: when it was read, and the row and digest of its pixels (-1 and "" when bad)."""

    name: str
    size: int
    mtime_ns: int
    row: int
    sha256: str


class ImageCache:
    """One folder with `index.json` and the array that it names.

    The index is renamed into place last and each array has a name of its own, so a kill or a full disk leaves
    the old pair whole. A process that still maps an old array keeps it: only its name goes.
    The folder holds patients' images: it is made readable for its owner alone.

    Args:
        folder: Made when missing.
        root: Image root.
        settings: The transforms.
    """

    def __init__(self, folder: Path, root: Path, settings: ImageSettings) -> None:
        self.folder = folder
        self.root = root
        self.settings = settings
        self._digest = hashlib.sha256(f"{settings.digest()} {root.resolve()}".encode()).hexdigest()

    def open(self, files: Sequence[str]) -> CachedImages | None:
        """Map the array when it is valid for exactly these files in this order, else None; reads no image."""
        entries, images, path = self._read()
        now = [self._stat(file) for file in files]
        if images is None or [(entry.name, entry.size, entry.mtime_ns) for entry in entries] != now:
            return None
        return _result(images, entries, path)

    def build(self, files: Sequence[str], tell: Callable[[int, int], None] = lambda done, of: None) -> CachedImages:
        """Write a new array: rows of unchanged files are copied, the others are computed.

        Args:
            files: As `build_cache`.
            tell: As `build_cache`.

        Raises:
            DataError: The disk is full or the folder cannot be written; the old cache is whole.
            StoppedError: `tell` raised it; see `build_cache`.
        """
        old, images, _ = self._read()
        known = {entry[:3]: entry for entry in old} if images is not None else {}
        stopped: StoppedError | None = None
        stats = [self._stat(file) for file in files]
        path = self.folder / f"images-{os.urandom(8).hex()}.npy"
        temporary = path.with_suffix(".tmp")
        entries: list[_Entry] = []
        try:
            with open(temporary, "wb") as handle:
                array = PixelArrayWriter(handle, len(files), self.settings.shape)
                try:
                    for stat, pixels in zip(stats, self._rows(stats, known, images), strict=True):
                        entries.append(_entry(stat, pixels, array))
                        if stat not in known:
                            tell(len(entries), len(stats))
                except StoppedError as error:
                    stopped = error
                    rest = [stat for stat in stats[len(entries) :] if stat in known]
                    copied = self._rows(rest, known, images)
                    entries += [_entry(stat, pixels, array) for stat, pixels in zip(rest, copied, strict=True)]
                array.finish()
            os.replace(temporary, path)
            listed = [list(entry) for entry in entries]
            record = {"format": CACHE_FORMAT, "digest": self._digest, "images": path.name, "files": listed}
            write_json(self.folder / "index.json", record)
        except (OSError, StateError) as error:
            full = getattr(error, "errno", None) == errno.ENOSPC
            cause = "the disk is full" if full else str(error)
            raise DataError(
                f"the image cache in {self.folder} was not written: {cause}. Make room, or name another folder."
            ) from error
        finally:
            self._sweep()
        if stopped is not None:
            raise stopped
        return _result(map_pixels(path, array.rows, self.settings.shape), entries, path)

    def _rows(
        self,
        stats: list[tuple[str, int, int]],
        known: dict[tuple[str, int, int], _Entry],
        images: Pixels | None,
    ) -> Iterator[Pixels | DataError]:
        transform: Callable[[str | Path], Pixels] | None = None
        if any(stat[1] >= 0 and stat not in known for stat in stats):
            transform = image_pipeline(self.settings)

        def row(stat: tuple[str, int, int]) -> Pixels | DataError:
            entry = known.get(stat)
            if entry is not None and entry.row >= 0 and images is not None:
                return np.asarray(images[entry.row])
            if entry is not None or transform is None:
                return DataError(f"{stat[0]} is missing, or was damaged when it was last read.")
            try:
                return transform(self.root / stat[0])
            except DataError as error:
                return error

        # OpenCV releases the interpreter lock, so threads decode side by side; map keeps the order.
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            for begin in range(0, len(stats), _CHUNK):
                yield from pool.map(row, stats[begin : begin + _CHUNK])

    def _stat(self, file: str) -> tuple[str, int, int]:
        try:
            found = os.stat(self.root / file)
        except OSError:
            return file, -1, -1
        return file, found.st_size, found.st_mtime_ns

    def _read(self) -> tuple[list[_Entry], Pixels | None, Path | None]:
        """The index and its array; an empty list and None when there is none, or it is of other settings."""
        try:
            index = read_json(self.folder / "index.json")
            if index["format"] != CACHE_FORMAT or index["digest"] != self._digest:
                return [], None, None
            entries = [_Entry(*fields) for fields in index["files"]]
            path = self.folder / Path(index["images"]).name
            rows = sum(entry.row >= 0 for entry in entries)
            return entries, map_pixels(path, rows, self.settings.shape), path
        except (StateError, DataError, KeyError, TypeError):
            return [], None, None

    def _sweep(self) -> None:
        """Remove arrays that the index does not name, and what a killed build left."""
        try:
            current = read_json(self.folder / "index.json").get("images")
        except StateError:
            current = None
        for path in self.folder.glob("images-*"):
            if path.name != current:
                path.unlink(missing_ok=True)


def build_cache(
    files: Sequence[str],
    root: Path,
    settings: ImageSettings,
    folder: Path,
    on_bad: Literal["skip", "refuse"] = "skip",
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> CachedImages:
    """Give the transformed images of files, computing only what is not cached or has changed.

    A file has changed when its name, size or modification time differs; the whole cache has when the settings
    or the pipeline's version do. A valid cache is opened without MONAI, without a lock and without a write,
    so its folder may be read-only. One process builds at a time; others wait and then find the work done.

    Args:
        files: Names relative to `root`.
        root: Image root.
        settings: The transforms.
        folder: The cache's own folder.
        on_bad: "refuse" raises when a file cannot be read; "skip" leaves it out and names it in `bad`.
        tell: Called after each image that is computed: how many are in the cache, and of how many. Where it raises a
            StoppedError, the images so far are kept, and the next call goes on behind them.

    Raises:
        DataError: A name could leave the root; the cache cannot be written; or, with "refuse", files
            cannot be read (up to five are named).
        StoppedError: `tell` raised it.
    """
    plain = [require_inside(file) for file in files]
    cache = ImageCache(folder, root, settings)
    found = cache.open(plain)
    if found is None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with folder_lock(folder, _LOCK_WAIT_S):
                found = cache.open(plain) or cache.build(plain, tell)
        except (OSError, StateError) as error:
            raise DataError(f"the image cache {folder} cannot be used ({error}): name another folder.") from error
    if found.bad and on_bad == "refuse":
        more = f" and {len(found.bad) - 5} more" if len(found.bad) > 5 else ""
        raise DataError(
            f"{len(found.bad)} of {len(files)} images are missing, cut off or damaged: "
            f"{', '.join(found.bad[:5])}{more}. Copy them again, remove their rows, or set bad_files to 'skip'."
        )
    return found


def _entry(stat: tuple[str, int, int], pixels: Pixels | DataError, array: PixelArrayWriter) -> _Entry:
    """Add a row to the array where the file could be read, and give its entry."""
    if isinstance(pixels, DataError):
        # A file that could not be opened is tried again next time, a damaged one when it changes.
        retry = isinstance(pixels.__cause__, OSError)
        return _Entry(stat[0], stat[1], -1 if retry else stat[2], -1, "")
    return _Entry(*stat, array.add(pixels), hashlib.sha256(pixels.tobytes()).hexdigest())


def _result(images: Pixels, entries: Sequence[_Entry], path: Path | None) -> CachedImages:
    return CachedImages(
        images,
        kept=tuple(at for at, entry in enumerate(entries) if entry.row >= 0),
        bad=tuple(entry.name for entry in entries if entry.row < 0),
        digests=tuple(entry.sha256 for entry in entries if entry.row >= 0),
        path=path if len(images) else None,
    )


Pixels = NDArray[np.uint8]


class PixelArrayWriter:
    """Writes a NumPy file of uint8 rows whose number is known at the end alone; memory holds one row.

    Attributes:
        rows: How many rows were written.

    Args:
        handle: A new file, open for writing.
        most: At most so many rows will come.
        sample: Shape of a row: channels, height, width.
    """

    def __init__(self, handle: BinaryIO, most: int, sample: tuple[int, int, int]) -> None:
        self._handle = handle
        self._sample = sample
        self.rows = 0
        self._write_header(most)

    def add(self, pixels: Pixels) -> int:
        """Write a row and give its number."""
        self._handle.write(pixels.tobytes())
        self.rows += 1
        return self.rows - 1

    def finish(self) -> None:
        """Tell the file how many rows it has, and wait until the disk holds all of it."""
        self._handle.seek(0)
        self._write_header(self.rows)
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def _write_header(self, rows: int) -> None:
        # NumPy pads the header for growth of the first axis, so it keeps its length when `rows` is corrected.
        np.lib.format.write_array_header_1_0(
            self._handle, {"descr": "|u1", "fortran_order": False, "shape": (rows, *self._sample)}
        )


def map_pixels(path: Path, rows: int, sample: tuple[int, int, int]) -> Pixels:
    """Map the array's file read-only; an array without a row needs none.

    Args:
        path: The file.
        rows: How many rows it must have.
        sample: Shape of a row.

    Returns:
        uint8 [rows, channels, height, width].

    Raises:
        DataError: It is missing, damaged, or holds another array.
    """
    shape = (rows, *sample)
    if rows == 0:
        return np.empty(shape, np.uint8)
    try:
        images: Pixels = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:  # EOFError: the file is empty
        raise DataError(f"{path} is missing or damaged ({error}).") from error
    if images.shape != shape or images.dtype != np.uint8:
        raise DataError(f"{path} holds {images.dtype} {images.shape}, expected uint8 {shape}.")
    return images
