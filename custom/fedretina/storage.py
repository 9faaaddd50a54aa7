"""Files that are either the old version or the new one, never half of each.

Everything durable of a run goes through here, but for lines that are appended to a file that one process holds
(`locks`): tensors as safetensors with one JSON header, read whole or stretch by stretch, and records as JSON.
A write goes to a temporary file beside its target, is synced, renamed over it, and the folder is synced, so
that a kill, a power cut or a full disk leaves the old file whole. Names that come from outside (of a run, of a site)
are looked at here before they name a folder.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from fedretina.errors import DataError, RefusedError, SettingsError, StateError

if TYPE_CHECKING:  # the admin commands read and write records only, and do not wait for torch
    import torch

SERVER = "server"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

FORMAT = 1
HEADER = "fedretina"
DROPPED = "dropped"
"""Beginning of the names of the folders that hold what a run left at an end when it went back; nothing reads them."""
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
}
_TEMPORARY = ".tmp"
_HALF = ".fedretina.half"  # a folder that is being filled


def require_name(name: str, what: str) -> str:
    """Return the name when it may be used as a folder's name.

    Raises:
        RefusedError: The name is empty, too long, or could leave its folder.
    """
    if not _NAME.fullmatch(name):
        raise RefusedError(f"the {what} {name[:100]!r} is not a plain name: use letters, digits, '.', '_' and '-'.")
    return name


def require_sites(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a run's sites, where each may be a folder's and stands once.

    Raises:
        RefusedError: A name could leave its folder.
        SettingsError: There is no name, one stands twice, or one is the server's.
    """
    if not names:
        raise SettingsError("no site is named: name each site once, by comma.")
    for at, name in enumerate(names):
        require_name(name, "site")
        if name in names[:at]:
            raise SettingsError(f"the site {name!r} is named twice: name each site once.")
        if name == SERVER:
            raise SettingsError(f"{SERVER!r} is the server's name: name the sites alone.")
    return tuple(names)


def write_json(path: Path, record: Mapping[str, Any], durable: bool = True, named: bool = True) -> None:
    """Write a JSON record atomically; keys are sorted so that equal records are equal files.

    Args:
        path: The file.
        record: Plain values.
        durable: Wait until the disk has it; False for what may be lost with the machine's power.
        named: Wait until the disk has its name, too; False where a later durable write into the same folder does it
            for both.

    Raises:
        StateError: The disk is full or not writable; the old file is whole.
    """
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_bytes(path, text.encode("utf-8"), durable=durable, named=named)


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text file atomically.

    Args:
        path: The file.
        text: What it is to hold.
        mode: Its rights, 0o600 for a secret, whatever the umask is: it has them before the first word is in it. None
            for those that the process gives every file.

    Raises:
        StateError: The disk is full or not writable; the old file is whole.
    """
    write_bytes(path, text.encode("utf-8"), mode)


def write_bytes(path: Path, content: bytes, mode: int | None = None, durable: bool = True, named: bool = True) -> None:
    """Write a file atomically.

    Args:
        path: The file.
        content: What it is to hold.
        mode: See `write_text`.
        durable: See `write_json`.
        named: See `write_json`.

    Raises:
        StateError: The disk is full or not writable; the old file is whole.
    """

    def write(temporary: Path) -> None:
        if mode is not None:
            temporary.unlink(missing_ok=True)  # one that a killed process left may be open to others
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            os.fchmod(handle, mode)  # the umask may have taken rights away that others need
            os.close(handle)
        temporary.write_bytes(content)

    _replace(path, write, durable, named)


def write_output(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Write a file that a person has asked for, atomically.

    Args:
        path: The file.
        content: What it is to hold; text as UTF-8.
        durable: See `write_json`.

    Raises:
        DataError: It was not written; what was there is whole.
    """
    try:
        write_bytes(path, content.encode("utf-8") if isinstance(content, str) else content, durable=durable)
    except StateError as error:
        raise DataError(
            f"{path} was not written ({error.__cause__}): make room, or choose a folder that you may write to."
        ) from error


def erase_half_written(folder: Path, names: str) -> None:
    """Erase what processes that were killed in the middle of a write left of some files.

    Args:
        folder: Nobody else may be writing these files there.
        names: Pattern of the files' names, such as "*.png".
    """
    for path in folder.glob(f".{names}.[0-9]*{_TEMPORARY}"):
        path.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON record.

    Raises:
        StateError: The file is missing, damaged, or holds no record.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StateError(f"{path} is missing: restore it from a backup, or start a new run.") from error
    except (OSError, ValueError) as error:
        raise StateError(f"{path} cannot be read ({error}): restore it from a backup.") from error
    if not isinstance(record, dict):
        raise StateError(f"{path} holds no record: restore it from a backup.")
    return record


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    record: Mapping[str, Any],
    durable: bool = True,
    named: bool = True,
) -> None:
    """Write tensors and a JSON record into one safetensors file, atomically.

    Args:
        path: The file.
        tensors: By key.
        record: Plain values for the file's header.
        durable: Wait until the disk has it; False for files that a restart erases anyway.
        named: See `write_json`.

    Raises:
        StateError: The disk is full or not writable; the old file is whole.
    """
    from safetensors.torch import save_file

    header = json.dumps({"format": FORMAT, **record}, sort_keys=True, allow_nan=False)
    plain = {key: tensor.detach().cpu().contiguous() for key, tensor in sorted(tensors.items())}
    _replace(path, lambda temporary: save_file(plain, temporary, metadata={HEADER: header}), durable, named)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read the tensors and the JSON record of one file.

    Raises:
        StateError: The file is missing, damaged or of another format version.
    """
    with open_tensors(path) as (handle, record):
        return {key: handle.get_tensor(key) for key in handle.keys()}, record  # noqa: SIM118


@contextmanager
def open_tensors(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a tensor file without reading it: `handle.get_tensor(key)` reads one tensor.

    Raises:
        StateError: The file is missing, damaged or of another format version.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as handle:
            record = json.loads((handle.metadata() or {}).get(HEADER, "{}"))
            if record.get("format") != FORMAT:
                raise StateError(
                    f"{path} has format {record.get('format')}, this version reads {FORMAT}: "
                    "finish the run with the version that began it, or start a new run."
                )
            yield handle, record
    except FileNotFoundError as error:
        raise StateError(f"{path} is missing: restore it from a backup, or start a new run.") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise StateError(f"{path} cannot be read ({error}): restore it from a backup.") from error


class Place(NamedTuple):
    """Where a tensor's numbers lie in a file, row by row.

    Attributes:
        dtype: Its type.
        shape: Its shape.
        begin: Its first byte.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int


class StoredTensors(NamedTuple):
    """Tensors that lie in a file which nobody writes to any more.

    Attributes:
        path: The file.
        places: By key.
    """

    path: Path
    places: Mapping[str, Place]


class TensorFile:
    """A tensor file that is read stretch by stretch into buffers of the caller; none of its pages stays in memory.

    Its header is read once, where `open_tensors` reads it at each opening; threads may read at the same time.

    Args:
        path: The file.
        places: Where its tensors lie; None reads that from the header that `write_tensors` gives a file.

    Raises:
        StateError: As `open_tensors`; so does `read_into` where the file ends before it should.
    """

    def __init__(self, path: Path, places: Mapping[str, Place] | None = None) -> None:
        self._path = path
        if places is None:
            with open_tensors(path):  # whether it is whole
                self._file = path.open("rb", buffering=0)
            self._places = self._header()
            return
        self._places = dict(places)
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise StateError(f"{path} cannot be read ({error}): restore it from a backup.") from error

    def _header(self) -> dict[str, Place]:
        import torch

        length = int.from_bytes(self._file.read(8), "little")
        words = json.loads(self._file.read(length))
        return {
            key: Place(getattr(torch, _DTYPES[one["dtype"]]), tuple(one["shape"]), 8 + length + one["data_offsets"][0])
            for key, one in words.items()
            if key != "__metadata__"
        }

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def places(self) -> Mapping[str, Place]:
        """Where each tensor lies."""
        return self._places

    @property
    def keys(self) -> list[str]:
        """The tensors' keys, sorted."""
        return sorted(self._places)

    def dtype(self, key: str) -> torch.dtype:
        """A tensor's type."""
        return self._places[key].dtype

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return self._places[key].shape

    def begin(self, key: str) -> int:
        """A tensor's first byte in the file."""
        return self._places[key].begin

    def end(self, key: str) -> int:
        """The byte after a tensor's last."""
        dtype, shape, begin = self._places[key]
        return begin + math.prod(shape) * dtype.itemsize

    def tensor(self, key: str) -> torch.Tensor:
        """One tensor, whole."""
        import torch

        place = self._places[key]
        found = torch.empty(place.shape, dtype=place.dtype)
        if found.numel():
            self.read_into(key, 0, found.view(-1))
        return found

    def read_into(self, key: str, begin: int, values: torch.Tensor) -> None:
        """Read some of a tensor's numbers.

        Args:
            key: The tensor.
            begin: Place of the first of them, counted over the whole tensor, laid flat.
            values: Where they go: contiguous, one dimension, of the tensor's type. More than the tensor has are read
                from what lies behind it.
        """
        import torch

        room = values.view(torch.uint8).numpy().data
        self.read_bytes(self._places[key].begin + begin * values.element_size(), room)

    def read_bytes(self, begin: int, room: memoryview) -> None:
        """Fill memory with the file's bytes from one on."""
        if os.preadv(self._file.fileno(), [room], begin) != len(room):
            raise StateError(f"{self._path} ends too early: restore it from a backup.")


def set_aside(paths: Iterable[Path], folder: Path) -> None:
    """Put files into a folder as well, by a hard link where the disk knows such; what it holds by their names goes.

    Args:
        paths: Files of one disk with the folder.
        folder: Created when missing, for its owner alone.

    Raises:
        StateError: The disk is full or not writable; the files lie where they lay.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in paths:
            kept = folder / path.name
            kept.unlink(missing_ok=True)
            try:
                os.link(path, kept)
            except OSError:
                shutil.copyfile(path, kept)
                sync(kept)
        sync(folder)
    except OSError as error:
        raise StateError(f"{folder} cannot be written ({error}): make room, and resume the run.") from error


@contextmanager
def filled_folder(folder: Path, what: str) -> Iterator[Path]:
    """Fill a new or empty folder wholly or not at all, so that a try that failed does not stand in the next one's way.

    Args:
        folder: Made when missing.
        what: What goes into it, for the sentence, such as "the clients".

    Yields:
        A folder within it to write into; what it holds when the block ends well is moved up.

    Raises:
        DataError: The folder holds files already, or cannot be written.
    """
    above = [place for place in (folder, *folder.parents) if not place.exists()]
    half = folder / _HALF
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(half, ignore_errors=True)  # of a process that was killed
        if any(folder.iterdir()):
            raise DataError(f"{folder} holds files already: choose a new or empty folder for {what}.")
        half.mkdir()
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from error
    moved: list[Path] = []
    try:
        yield half
        try:
            for child in sorted(half.iterdir()):
                moved.append(child.rename(folder / child.name))
            half.rmdir()
        except OSError as error:
            raise DataError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from error
    except BaseException:
        for path in (half, *moved):
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            for place in above:
                place.rmdir()
        raise


def _replace(path: Path, write: Callable[[Path], Any], durable: bool = True, named: bool = True) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}{_TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        if durable:
            sync(temporary)
        os.replace(temporary, path)
        if durable and named:
            sync(path.parent)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):  # whatever kept it from being written keeps it from being looked for, too
            temporary.unlink(missing_ok=True)
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        cause = "the disk is full" if full else str(error)
        raise StateError(
            f"{path} was not saved: {cause}. What was there before is whole: make room, and start it again."
        ) from error


def sync(path: Path) -> None:
    """Wait until the disk has a file's content, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
