"""The durable state of one site in one run: one file per round, and a small record that says which count.

A round's snapshot is first staged. The next order of the server says whether the update was accepted: then the
staged snapshot counts, otherwise it is dropped and the round starts again from its predecessor. Nothing in memory
is needed from one task to the next, so a killed process loses at most the round it was in.

A run keeps the site's last five rounds that count and, for each of them, what the best step of then needs. That is
enough: a step becomes the best when it is measured, right after it, or never (`aggregation.choice`), so the best of
later is the best of now, its successor, or a step that is still to come. The rounds beyond the last are for a server
that is restored from a backup: the last round of the site that it knows is one of the last four, or it is refused. And
they are for a run that goes back, by three rounds or to its start (`settings.plan.RestartSettings`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedretina.errors import StateError, TrainingError
from fedretina.exchange.payload import Tensors
from fedretina.settings.plan import ROUNDS_BACK, Step
from fedretina.storage import DROPPED, read_json, read_tensors, set_aside, write_json, write_tensors

_log = logging.getLogger(__name__)
_MEMORY = "memory:"
# Before the oldest round that a run goes back to, the site has one more; tuning gives one too.
_ROUNDS = ROUNDS_BACK + 2


class Snapshot(NamedTuple):
    """A site's state after a round.

    Attributes:
        tensors: The personal part of the network, by key.
        record: Plain figures that the next round or the report needs (theta, loss, accuracy).
        memory: What the correction keeps at the site (variates, drifts, the last model), by its own names.
    """

    tensors: Tensors
    record: Mapping[str, Any]
    memory: Tensors = MappingProxyType({})


class SiteState:
    """State of a site under one folder.

    Args:
        folder: The site's own folder of this run, outside FLARE's.
        digest: What both ends agreed on; state of other settings or another version is refused.
        name_of: Name of a step in files.
        listed: Digest of what the site's manifest lists; see `SiteData.listed`.

    Raises:
        StateError: The folder holds state of other settings or another version, or cannot be read.
    """

    def __init__(self, folder: Path, digest: str, name_of: Callable[[int], str], listed: str = "") -> None:
        self._folder = folder
        self._listed = listed
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

    @property
    def data_changes(self) -> list[str]:
        """Names of the steps that the site began with other data than those before, as `require_data` let it."""
        return list(self._record.get("data_changes", []))

    @property
    def restarts(self) -> tuple[str, ...]:
        """Marks of the times that the site went back with its run, in order."""
        return tuple(self._record.get("restarts", ()))

    def go_back(self, step: int, mark: str) -> None:
        """Take a step and all after it as not done; what they left is moved into a folder beside, never erased.

        Killed at any point, it is done again by the next call with the same mark.

        Args:
            step: Where the run starts again.
            mark: Names the folder, and is one of `restarts` from now on; see `RestartSettings`.

        Raises:
            StateError: The disk is full or not writable; the state is what it was.
        """
        if self._path.exists():
            set_aside([self._path, *self._folder.glob("*.safetensors")], self._folder / f"{DROPPED}-{mark}")
        counted = [number for number in self._record["counted"] if number < step]
        bests = {told: best for told, best in self._record.get("bests", {}).items() if int(told) < step}
        staged = self._record["staged"]
        staged = staged if staged is not None and staged < step else None
        self._settle(
            counted=counted, bests=bests, staged=staged, oldest=0, restarts=[*self.restarts, mark], restarted=step
        )

    def open(self, accepted: int | None, best: int | None) -> Snapshot | None:
        """Settle what was staged and return the state that the next round starts from.

        Args:
            accepted: Step of the last update that the server accepted, None for none.
            best: Best step so far; None while there is none.

        Returns:
            The snapshot of `accepted`, or None when the site begins.

        Raises:
            StateError: The server counts on a step that is not here, or no longer.
        """
        if accepted is not None and self._stands_in(accepted):
            accepted = None
        if accepted is None and self._record["counted"]:
            raise StateError(
                f"{self._folder} holds accepted rounds of this run, but the server knows of none: restore the "
                "server's folder of the run, or give the new run another name."
            )
        counted: list[int] = [step for step in self._record["counted"] if accepted is not None and step <= accepted]
        oldest = int(self._record.get("oldest", 0))
        if accepted is not None and (accepted not in counted or accepted < oldest):
            if self._record["staged"] != accepted:
                raise StateError(
                    f"{self._folder} does not hold the state after {self._name_of(accepted)}, which is the last that "
                    "the server accepted: restore the folder, or a newer copy of the server's, or start a new run."
                )
            counted.append(accepted)
        last = counted[-_ROUNDS:]
        if len(counted) > len(last):
            oldest = max(oldest, last[1])
        told: dict[str, int | None] = self._record.get("bests", {})
        bests = {str(step): told[str(step)] for step in last if str(step) in told}
        if accepted is not None:
            # The first best that came with a step is the oldest one: a later best is the step itself or newer.
            bests.setdefault(str(accepted), best)
        wanted = {*last, *(_belonging(counted, old) for old in (best, *bests.values()))}
        counted = [step for step in counted if step in wanted]
        self._settle(counted=counted, bests=bests, oldest=oldest, staged=None)
        return self._read(accepted) if accepted is not None else None

    def _stands_in(self, accepted: int) -> bool:
        """After the run went back: put the nearest older round in the place of one that is not kept here any more.

        Returns:
            Whether there is none at all, so that the site begins anew.
        """
        if accepted >= int(self._record.get("restarted", 0)):
            return False
        counted = self._record["counted"]
        if accepted in counted or self._record["staged"] == accepted:
            return False
        nearest = _belonging(counted, accepted)
        if nearest is None:
            _log.warning("the run went back, and no own part for it is left here: the site begins anew")
            return True
        _log.warning(
            "the run went back to %s, whose own part is not kept here any more: %s stands in for it",
            self._name_of(accepted),
            self._name_of(nearest),
        )
        tensors, record = read_tensors(self._file(nearest))
        write_tensors(self._file(accepted), tensors, {"step": accepted, "record": record["record"]})
        self._settle(counted=[*counted, accepted])
        return False

    def require_data(self, step: int, accept: bool) -> None:
        """Refuse to go on with other data than those that the site's rounds learned from.

        Images that changed splits between two rounds would be tested on after they were trained on, and nothing in the
        figures would show it. Before a round of the site's counts, its data may change.

        Args:
            step: The step that is to begin.
            accept: The site allows it, and the step is noted under `data_changes`.

        Raises:
            TrainingError: The data are others.
        """
        known = self._record.get("data")
        if not self._record["counted"] or known in (None, self._listed):
            return
        if not accept:
            raise TrainingError(
                "the site's list of images, labels, patients and splits is not the one that its earlier rounds of this "
                "run learned from, so it could be tested on what it was trained on: let it put the old list back, or "
                "start a new run; a site that knows better sets data.changes to accept."
            )
        self._settle(data=self._listed, data_changes=[*self.data_changes, self._name_of(step)])

    def stage(self, step: int, snapshot: Snapshot) -> None:
        """Keep a round's snapshot until the server says whether its update was accepted."""
        memory = {f"{_MEMORY}{name}": tensor for name, tensor in snapshot.memory.items()}
        write_tensors(self._file(step), {**snapshot.tensors, **memory}, {"step": step, "record": dict(snapshot.record)})
        self._settle(staged=step, data=self._listed)

    def kept(self, best: int) -> Snapshot | None:
        """The snapshot that belongs to the model of a step: of that round, or the site's last one before it."""
        step = _belonging(self._record["counted"], best)
        return None if step is None else self._read(step)

    def _read(self, step: int) -> Snapshot:
        found, record = read_tensors(self._file(step))
        memory = {name.removeprefix(_MEMORY): tensor for name, tensor in found.items() if name.startswith(_MEMORY)}
        tensors = {name: tensor for name, tensor in found.items() if not name.startswith(_MEMORY)}
        return Snapshot(tensors, record["record"], memory)

    def _settle(self, **changed: Any) -> None:
        record: dict[str, Any] = {**self._record, **changed}
        if record != self._record or not self._path.exists():
            write_json(self._path, record)
            self._record = record
        # Files are removed only after the record that no longer names them is durable.
        steps = [*record["counted"], *([] if record["staged"] is None else [record["staged"]])]
        wanted = {self._file(step).name for step in steps}
        for path in self._folder.glob("*.safetensors"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    def _file(self, step: int) -> Path:
        return self._folder / f"{self._name_of(step)}.safetensors"


def _belonging(counted: Sequence[int], best: int | None) -> int | None:
    """The site's step that belongs to the model of another: the same, or its last one before it."""
    older = [step for step in counted if best is not None and step <= best]
    return older[-1] if older else None


class History:
    """Figures by step under one file; noted twice, they stand there once.

    Args:
        path: The file, in the site's own folder of the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: dict[str, dict[str, Any]] = read_json(path) if path.exists() else {}

    def note(self, step: Step, **figures: Any) -> None:
        """Add figures to a step; durable when it returns.

        Raises:
            StateError: The file cannot be written.
        """
        key = f"{step.number:05d}"
        entry = {"step": step.name, **self._steps.get(key, {}), **figures}
        if self._steps.get(key) != entry:
            steps = {**self._steps, key: entry}
            write_json(self._path, steps)
            self._steps = steps

    def go_back(self, step: int, aside: Path) -> None:
        """Forget a step and all after it; the file as it was is kept in a folder.

        Raises:
            StateError: The file cannot be written.
        """
        steps = {key: entry for key, entry in self._steps.items() if int(key) < step}
        if steps != self._steps:
            set_aside([self._path], aside)
            write_json(self._path, steps)
            self._steps = steps

    def own_after(self, step: int) -> list[int]:
        """Steps after this one of which a round of the site's own is noted, in order."""
        return sorted(int(key) for key, entry in self._steps.items() if int(key) > step and "weight" in entry)

    def steps(self) -> list[dict[str, Any]]:
        """The entries in the order of the run, each with the name of its `step`."""
        return [dict(self._steps[key]) for key in sorted(self._steps)]

    def numbered(self) -> dict[int, dict[str, Any]]:
        """The entries by number of their step."""
        return {int(key): dict(entry) for key, entry in self._steps.items()}
