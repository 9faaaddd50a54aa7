"""The durable state of one site in one run: one file a round, and a small record that says which count.

A round's snapshot is first staged. The next order of the server says whether the update was accepted: then the
staged snapshot counts, otherwise it is dropped and the round starts again from its predecessor. Nothing in memory
is needed from one task to the next, so a killed process loses at most the round it was in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedretina.errors import StateError
from fedretina.local.snapshot import Snapshot
from fedretina.storage import read_json, read_tensors, write_json, write_tensors

_MEMORY = "memory:"


class SiteState:
    """State of a site under one folder.

    Args:
        folder: The site's own folder of this run, outside FLARE's.
        digest: What both ends agreed on; state of other settings or another version is refused.
        name_of: Name of a step in files.

    Raises:
        StateError: The folder holds state of other settings or another version, or cannot be read.
    """

    def __init__(self, folder: Path, digest: str, name_of: Callable[[int], str]) -> None:
        self._folder = folder
        self._name_of = name_of
        self._path = folder / "state.json"
        if self._path.exists():
            self._record = read_json(self._path)
            found = str(self._record.get("digest", ""))
            if found != digest:
                raise StateError(
                    f"{folder} holds state of other settings or another version (digest {found[:12]} against "
                    f"{digest[:12]}): continue with the job and version that began it, or start a new run."
                )
        else:
            self._record = {"digest": digest, "counted": [], "staged": None}

    def open(self, accepted: int | None, best: int | None) -> Snapshot | None:
        """Settle what was staged and return the state that the next round starts from.

        Args:
            accepted: Step of the last update that the server accepted, None for none.
            best: Best step so far; with it older snapshots than it needs are forgotten.

        Returns:
            The snapshot of `accepted`, or None when the site begins.

        Raises:
            StateError: The server counts on a step that is not here.
        """
        if accepted is None and self._record["counted"]:
            raise StateError(
                f"{self._folder} holds accepted rounds of this run, but the server knows of none: restore the "
                "server's folder of the run, or give the new run another name."
            )
        counted: list[int] = [step for step in self._record["counted"] if accepted is not None and step <= accepted]
        staged = self._record["staged"]
        if accepted is not None and accepted not in counted:
            if staged != accepted:
                raise StateError(
                    f"{self._folder} does not hold the state after {self._name_of(accepted)}, which the server "
                    "accepted: restore the folder from a backup, or start a new run."
                )
            counted.append(accepted)
        if counted and best is not None:
            older = [step for step in counted if step <= best]
            counted = [step for step in counted if step >= (older[-1] if older else 0)]
        self._settle(counted, staged=None)
        return self._read(accepted) if accepted is not None else None

    def stage(self, step: int, snapshot: Snapshot) -> None:
        """Keep a round's snapshot until the server says whether its update was accepted."""
        memory = {f"{_MEMORY}{name}": tensor for name, tensor in snapshot.memory.items()}
        write_tensors(self._file(step), {**snapshot.tensors, **memory}, {"step": step, "record": dict(snapshot.record)})
        self._settle(list(self._record["counted"]), staged=step)

    def kept(self, best: int) -> Snapshot | None:
        """The snapshot that belongs to the model of a step: of that round, or the site's last one before it."""
        older = [step for step in self._record["counted"] if step <= best]
        return self._read(older[-1]) if older else None

    def _read(self, step: int) -> Snapshot:
        found, record = read_tensors(self._file(step))
        memory = {name.removeprefix(_MEMORY): tensor for name, tensor in found.items() if name.startswith(_MEMORY)}
        tensors = {name: tensor for name, tensor in found.items() if not name.startswith(_MEMORY)}
        return Snapshot(tensors, record["record"], memory)

    def _settle(self, counted: list[int], staged: int | None) -> None:
        record: dict[str, Any] = {"digest": self._record["digest"], "counted": counted, "staged": staged}
        if record != self._record or not self._path.exists():
            write_json(self._path, record)
            self._record = record
        # Files are removed only after the record that no longer names them is durable.
        wanted = {self._file(step).name for step in [*counted, *([] if staged is None else [staged])]}
        for path in self._folder.glob("*.safetensors"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    def _file(self, step: int) -> Path:
        return self._folder / f"{self._name_of(step)}.safetensors"
