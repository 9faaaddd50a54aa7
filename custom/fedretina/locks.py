"""What one process holds at a time: a folder, or a file of lines that is only appended to."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from fedretina.errors import StateError
from fedretina.storage import erase_half_written


@contextmanager
def folder_lock(folder: Path, wait_s: float) -> Iterator[int]:
    """Hold a folder for one process; wait for a holder that is about to end.

    FLARE's old processes outlive a killed server by up to 20 seconds, so a continuation waits for them
    instead of writing beside them. What a holder that was killed left half written is erased.

    Args:
        folder: Created when missing, for its owner alone: it will hold models, answers and images of patients.
        wait_s: How long to wait for the holder, in seconds.

    Yields:
        The lock's descriptor: a process that inherits it holds the folder as well, until it ends.

    Raises:
        StateError: The folder is still held after the wait, or cannot be made or written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = open(folder / "lock", "a", encoding="utf-8")  # noqa: SIM115 - closed by the block below
    except OSError as error:
        raise StateError(
            f"the folder {folder} cannot be made or written ({error.strerror}): choose one that you may write to."
        ) from error
    with held as handle:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise StateError(
                        f"{folder} is in use by another process: end it, or give this run another name."
                    ) from error
                time.sleep(0.2)
        for place in (folder, *(child for child in folder.iterdir() if child.is_dir())):
            erase_half_written(place, "*")
        yield handle.fileno()


@contextmanager
def held_lines(path: Path, mode: int = 0o666) -> Iterator[tuple[FileIO, bytes]]:
    """Hold a file of lines that is only appended to, for one process at a time; make it where there is none.

    What a power cut or a full disk left unfinished behind the last whole line goes.

    Args:
        path: The file.
        mode: Its rights where it is made, less the process's umask.

    Yields:
        The file, unbuffered, for `append_line`, and its whole lines without the last line's end; no bytes of an empty
        file.

    Raises:
        OSError: The file or its folder cannot be made, read or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
    with os.fdopen(descriptor, "a+b", buffering=0) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        whole, _, rest = handle.read().rpartition(b"\n")
        if rest:
            handle.truncate(len(whole) + 1 if whole else 0)
        yield handle, whole


def append_line(handle: FileIO, line: bytes) -> None:
    """Append a line, without its end, to a file of `held_lines`; it is on the disk when this returns.

    Raises:
        OSError: It cannot be written whole.
    """
    if handle.write(line + b"\n") != len(line) + 1:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(handle.fileno())
