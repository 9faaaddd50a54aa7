"""A memory cgroup of our own, in which the kernel itself kills. It takes cgroups, of version 1 or 2, and root."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OURS = Path("/proc/self/cgroup")


class MemoryLimit:
    """Processes that are put in here, and their later children, have so much memory together.

    What a process held before is not counted, but the kernel looks at it when it chooses whom to kill: put it in early.

    Args:
        folder: The cgroup.
        first: Whether it is of version 1.
    """

    def __init__(self, folder: Path, first: bool) -> None:
        self.folder = folder
        self._first = first

    def hold(self, size: int) -> None:
        """Set the limit, in bytes."""
        (self.folder / ("memory.limit_in_bytes" if self._first else "memory.max")).write_text(str(size))

    def put(self, pid: int) -> None:
        """Put a process in."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def taken(self) -> int:
        """Bytes that the processes in here hold and that no file stands behind."""
        words = (self.folder / "memory.stat").read_text().split()
        return int(dict(zip(words[::2], words[1::2], strict=True))["rss" if self._first else "anon"])

    @property
    def killed(self) -> int:
        """How many processes the kernel has killed in here."""
        words = (self.folder / ("memory.oom_control" if self._first else "memory.events")).read_text().split()
        return int(dict(zip(words[::2], words[1::2], strict=True))["oom_kill"])


@contextmanager
def memory_limit(name: str) -> Iterator[MemoryLimit | None]:
    """Make a cgroup beside that of this process, and remove it at the end; None where that is not possible."""
    made = None
    for folder, first in _places():
        with suppress(OSError):
            (folder / name).mkdir()
            made = MemoryLimit(folder / name, first)
            break
    if made is not None and not (made.folder / ("memory.oom_control" if made._first else "memory.max")).exists():
        made.folder.rmdir()
        made = None
    try:
        yield made
    finally:
        for _ in range(100 if made else 0):  # the dead leave it a moment later
            with suppress(OSError):
                made.folder.rmdir()
                break
            time.sleep(0.05)


def _places() -> Iterator[tuple[Path, bool]]:
    root = Path("/sys/fs/cgroup")
    for line in _OURS.read_text().splitlines() if _OURS.exists() else ():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield root / "memory" / path.lstrip("/"), True
        elif not controllers:
            yield root / path.lstrip("/"), False
