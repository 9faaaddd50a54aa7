"""Bytes of tensors that lie in a file rather than in memory: to be handed to another process, or as they arrive.

Two processes of one user on one machine, as those of the simulator or of a rehearsal are, need not send each other a
model: one writes it into a file of the folder that both have, and tells the other its name. Nothing is taken from the
name but that: the receiver opens it in its own folder, follows no link, and looks whether the file is a plain one of
its own user, closed to all others, and of the size that the message claims. What cannot be handed over is sent.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from nvflare.apis.fl_context import FLContext

from fedretina.flare.job_context import simulated, state_root
from fedretina.settings.site import ServerSettings, SiteSettings

_log = logging.getLogger(__name__)
FOLDER = ".handover"
HANDOVER = "FEDRETINA_HANDOVER"
"""Environment variable that names such a folder, which all processes of a federation on one machine are given."""
WORTH_A_FILE = 2**20
"""Bytes below which nothing is written into a file."""
_NAME = re.compile(r"([0-9]{1,20})-([1-9][0-9]{0,9})-[0-9a-f]{32}")
"""Of the view of processes and the process that wrote it, and of itself."""


def handover_of(fl_ctx: FLContext, settings: SiteSettings | ServerSettings) -> Handover | None:
    """Where this process hands files over: in the simulator, and where whoever started it says so.

    Elsewhere the ends of a connection need not trust one another, and all is sent.
    """
    named = os.environ.get(HANDOVER)
    if not simulated(fl_ctx) and not named:
        return None
    try:
        return Handover(Path(named) if named else state_root(fl_ctx, settings) / FOLDER)
    except OSError as error:
        _log.warning("nothing is handed over: %s", error)
        return None


class Handover:
    """A folder of such files; each goes when the last array in it does, or when this process ends.

    Attributes:
        here: A digest of machine, boot, view of files and of processes, user and folder: what two processes must have
            in common. It tells nothing of any of them.

    Args:
        folder: Made when missing, for its owner alone. What processes that are gone have left there is erased.

    Raises:
        OSError: The folder cannot be made or read, or is not its user's own.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._folder)
        found = os.fstat(self._folder)
        _require_own(found)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        files, self._processes = (os.stat(f"/proc/self/ns/{view}").st_ino for view in ("mnt", "pid"))
        words = f"{boot}|{files}|{self._processes}|{os.geteuid()}|{found.st_dev}|{found.st_ino}"
        self.here = hashlib.sha256(words.encode()).hexdigest()
        self._path = folder
        self._sweep()

    def put(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Write bytes into a new file.

        Args:
            parts: uint8, one behind the other.

        Returns:
            All of them, uint8 and read-only, as the file holds them.

        Raises:
            OSError: The disk is full or not writable; nothing is left there.
        """
        file = self.begin()
        try:
            for part in parts:
                file.write(part.data)
            return file.end(writeable=False)
        except OSError:
            file.discard()
            raise

    def begin(self) -> OpenFile:
        """Begin a file that is filled piece by piece.

        Raises:
            OSError: It cannot be made.
        """
        name = f"{self._processes}-{os.getpid()}-{uuid.uuid4().hex}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return OpenFile(self._path / name, os.open(name, flags, 0o600, dir_fd=self._folder))

    def take(self, name: str, size: int) -> np.ndarray | None:
        """The bytes of a file that another process has put here.

        Args:
            name: The file's.
            size: How many bytes it must have.

        Returns:
            uint8 [size]: what is written there stays in this process; None where there is no such file.
        """
        if not _NAME.fullmatch(name) or size == 0:
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(name, flags, dir_fd=self._folder)
        except OSError:
            return None
        try:
            found = os.fstat(descriptor)
            _require_own(found)
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                return None
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                taken = np.memmap(file, np.uint8, "c", shape=(size,))
            taken.filename = str(self._path / name)
            return taken
        except (OSError, ValueError) as error:
            _log.warning("what was handed over is not taken: %s", error)
            return None
        finally:
            os.close(descriptor)

    @staticmethod
    def name(buffer: np.ndarray) -> str | None:
        """The name of the file that a buffer of `put` lies in; None for any other buffer."""
        path = Handover.path(buffer)
        written = None if path is None else _NAME.fullmatch(path.name)
        return written[0] if written is not None and written[2] == str(os.getpid()) else None

    @staticmethod
    def path(buffer: np.ndarray) -> Path | None:
        """The file that a buffer lies in, of this process or handed over by another; None for one in memory."""
        found = getattr(buffer, "filename", None)
        return None if found is None else Path(found)

    def _sweep(self) -> None:
        for name in os.listdir(self._folder):
            written = _NAME.fullmatch(name)
            # Of a process that another container sees and this one does not, nothing is known here.
            if written and written[1] == str(self._processes) and not Path(f"/proc/{written[2]}").exists():
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._folder)


class OpenFile:
    """A file that is being filled.

    Args:
        path: Where it lies; it is erased with the last array in it.
        descriptor: Of the open file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._size = path, 0
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._erase = weakref.finalize(self, path.unlink, missing_ok=True)

    def write(self, data: bytes | memoryview) -> None:
        """Write what follows.

        Raises:
            OSError: The disk is full or not writable.
        """
        left = memoryview(data).cast("B")
        while left:
            done = self._file.write(left) or 0
            left, self._size = left[done:], self._size + done

    def read_into(self, memory: np.ndarray) -> None:
        """Read what was written.

        Args:
            memory: uint8, of the size of what was written.

        Raises:
            OSError: The disk does not give it back.
        """
        left, at = memory.data, 0
        while left:  # Linux reads 2 GB at once at most
            done = os.preadv(self._file.fileno(), [left], at)
            if not done:
                raise OSError("the file is shorter than what was written into it")
            left, at = left[done:], at + done

    def discard(self) -> None:
        """Erase it."""
        self._file.close()
        self._erase()

    def end(self, writeable: bool) -> np.ndarray:
        """The file's bytes, uint8; what is written there stays in this process.

        Raises:
            OSError: There is no descriptor, or no room to map it, left; the file is as it was.
        """
        found: np.ndarray = np.empty(0, np.uint8)
        if self._size:
            # Of the open file and not of its name: the folder may have been erased, as it is at a run's end.
            mapped = np.memmap(self._file, np.uint8, "c", shape=(self._size,))
            mapped.filename = str(self._path)
            found = mapped
        self._file.close()
        found.flags.writeable = writeable
        if self._size:
            self._erase.detach()
            weakref.finalize(found, self._path.unlink, missing_ok=True)
        return found


class Filling:
    """Room for bytes that arrive one after the other: a file, and memory where there is none for it on the disk.

    Args:
        size: How many will come. Of memory no more is taken than what has come.
        folder: Where the file goes; None keeps all in memory.
    """

    def __init__(self, size: int, folder: Handover | None) -> None:
        self._size, self._at = size, 0
        self._file: OpenFile | None = None
        if folder is not None and size >= WORTH_A_FILE:
            try:
                self._file = folder.begin()
            except OSError as error:
                _log.warning("what arrives is kept in memory: %s", error)
        self._memory = np.empty(size if self._file is None else 0, np.uint8)

    def write(self, data: bytes | memoryview) -> None:
        """Write what comes next.

        Raises:
            OSError: The disk is full, and does not give back what it has.
        """
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                self._to_memory(self._file, error)
        if self._file is None:
            self._memory[self._at : self._at + len(data)] = np.frombuffer(data, np.uint8)
        self._at += len(data)

    def end(self) -> np.ndarray:
        """All bytes, uint8 [size], which may be written to.

        Raises:
            OSError: They are in a file that can neither be mapped nor read.
        """
        if self._file is not None:
            try:
                return self._file.end(writeable=True)
            except OSError as error:
                self._to_memory(self._file, error)
        return self._memory

    def _to_memory(self, file: OpenFile, error: OSError) -> None:
        _log.warning("what arrives is kept in memory: %s", error)
        self._memory = np.empty(self._size, np.uint8)
        file.read_into(self._memory[: self._at])
        self.discard()

    def discard(self) -> None:
        """Erase the file."""
        if self._file is not None:
            self._file.discard()
            self._file = None


def _require_own(found: os.stat_result) -> None:
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError("it is another user's, or open to others")
