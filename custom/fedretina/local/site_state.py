"""The durable state of one site in one run: one file per round, and a record that says which count and how they went.

A round's snapshot is first staged. The next order of the server says whether the update was accepted: then the
staged snapshot counts, otherwise it is dropped and the round starts again from its predecessor. Nothing in memory
is needed from one task to the next, so a killed process loses at most the round it was in.

The record stands in the header of the file that is staged, so that one durable write keeps both; `state.json` holds it
as well, without a wait for the disk. After a power cut the newer of them counts. What is only in `state.json` follows
again from the order that the server then repeats, since nothing has left for it. Before the first file is staged, a
record that such a cut took counts as none: the site has no round to lose.

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
from fedretina.storage import DROPPED, open_tensors, read_json, read_tensors, set_aside, write_json, write_tensors

STATE = "state.json"
"""In the site's folder of a run."""
_log = logging.getLogger(__name__)
_MEMORY = "memory:"
_SITE, _WRITES = "site", "writes"  # in a snapshot's header: the site's record; in that: how often it was written
# Before the oldest round that a run goes back to, the site has one more; tuning gives one too.
_ROUNDS = ROUNDS_BACK + 2


def without_model(folder: Path) -> str:
    """Why a site's folder of a run may hold no model, as sentences behind another; "" where it is no such folder."""
    if not (folder / STATE).exists():
        return ""
    return (
        " A site of which no update and no sums counted ends a run without a model of its own: the site's log says "
        "why, and so do the run's results at the server. After a run of heads from sums `fedretina head take` makes it "
        "one."
    )


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

    Attributes:
        history: Figures by step; what is noted there becomes durable with the next `stage` or `keep`.

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
        self._path = folder / STATE
        self._durable, known = _recorded(folder)
        self._record = known or {"digest": digest, "counted": [], "staged": None}
        found = str(self._record.get("digest", ""))
        if found != digest:
            raise StateError(
                f"{folder} holds state of other settings or another version (digest {found[:12]} against "
                f"{digest[:12]}): continue with the job and version that began it, or start a new run."
            )
        self.history = History(self._record.get("history", {}))

    @property
    def data_changes(self) -> list[str]:
        """Names of the steps that the site began with other data than those before, as `require_data` let it."""
        return list(self._record.get("data_changes", []))

    @property
    def restarts(self) -> tuple[str, ...]:
        """Marks of the times that the site went back with its run, in order."""
        return tuple(self._record.get("restarts", ()))

    def go_back(self, step: int, mark: str, accepted: int | None) -> None:
        """Take a step and all after it as not done; what they left is moved into a folder beside, never erased.

        Killed at any point, it is done again by the next call with the same mark.

        Args:
            step: Where the run starts again.
            mark: Names the folder, and is one of `restarts` from now on; see `RestartSettings`.
            accepted: Step of the last update that the server accepted, None for none.

        Raises:
            StateError: The disk is full or not writable; the state is what it was.
        """
        if self._path.exists() and _WRITES in self._record:  # what a power cut left of it does not replace a kept one
            set_aside([self._path, *self._folder.glob("*.safetensors")], self._folder / f"{DROPPED}-{mark}")
        counted = [number for number in self._record["counted"] if number < step]
        bests = {told: best for told, best in self._record.get("bests", {}).items() if int(told) < step}
        staged = self._record["staged"]
        staged = staged if staged is not None and staged < step else None
        # A site that was away when the run went back before kept figures of rounds that no longer count.
        self.history.go_back(min([step, *self.history.own_after(-1 if accepted is None else accepted)]))
        self._settle(
            counted=counted, bests=bests, staged=staged, oldest=0, restarts=[*self.restarts, mark], restarted=step
        )
        self.keep()

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
        self.keep()
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
        """Keep a round's snapshot until the server says whether its update was accepted; durable when it returns.

        Raises:
            StateError: The disk is full or not writable; the state is what it was, or has the round staged.
        """
        record = self._changed(staged=step, data=self._listed)
        memory = {f"{_MEMORY}{name}": tensor for name, tensor in snapshot.memory.items()}
        header = {"step": step, "record": dict(snapshot.record), _SITE: record}
        write_tensors(self._file(step), {**snapshot.tensors, **memory}, header)
        write_json(self._path, record, durable=False)
        self._record, self._durable = record, record[_WRITES]
        self._tidy()

    def keep(self) -> None:
        """Make durable what was settled and noted since the last time, for an answer that stages nothing.

        Raises:
            StateError: The disk is full or not writable; the state is what it was.
        """
        record = self._changed()
        if record.get(_WRITES, 0) > self._durable:
            write_json(self._path, record)
            self._record, self._durable = record, record[_WRITES]
            self._tidy()

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
        """Note what follows from an order; it follows again from the next one where a power cut takes it."""
        record = self._changed(**changed)
        if record != self._record:
            write_json(self._path, record, durable=False)
            self._record = record

    def _changed(self, **changed: Any) -> dict[str, Any]:
        """The record with changes, counted where it is another; which of two is newer is told by that."""
        record: dict[str, Any] = {**self._record, **changed}
        if self.history.noted != record.get("history", {}):
            record["history"] = self.history.noted
        return record if record == self._record else {**record, _WRITES: record.get(_WRITES, 0) + 1}

    def _tidy(self) -> None:
        """Remove files that the record does not name; only once it is durable."""
        steps = [*self._record["counted"], *([] if self._record["staged"] is None else [self._record["staged"]])]
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


def _recorded(folder: Path) -> tuple[int, dict[str, Any]]:
    """The newest record of a site, empty where there is none, and how often it had been written when it was durable."""
    durable, newest = 0, {}
    rounds = list(folder.glob("*.safetensors"))
    for path in rounds:
        try:
            with open_tensors(path) as (_, header):
                record = header.get(_SITE, {})
        except StateError:  # told when the round is asked for
            continue
        if record.get(_WRITES, 0) > durable:
            durable, newest = record[_WRITES], record
    path = folder / STATE
    try:
        record = read_json(path) if path.exists() else {}
    except StateError:
        if rounds and not newest:
            raise
        if not rounds:
            _log.warning("%s cannot be read, as after a power cut; no round is kept here: the site begins anew", STATE)
        record = {}
    if record and record.get(_WRITES, 0) >= durable:
        return durable, record
    if newest:
        _log.warning("%s is older than the last staged round, as after a power cut: that round's record counts", path)
    return durable, newest


def read_history(folder: Path) -> History:
    """Figures by step of a site, for who only reads them.

    Args:
        folder: The site's own folder of the run.

    Raises:
        StateError: They cannot be read.
    """
    return History(_recorded(folder)[1].get("history", {}))


class History:
    """Figures by step; noted twice, they stand there once.

    Args:
        noted: What was noted before, as in `noted`.
    """

    def __init__(self, noted: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> None:
        self._steps = dict(noted)

    @property
    def noted(self) -> dict[str, dict[str, Any]]:
        """The entries in a form that a file can hold."""
        return dict(self._steps)

    def note(self, step: Step, **figures: Any) -> None:
        """Add figures to a step."""
        key = f"{step.number:05d}"
        self._steps[key] = {"step": step.name, **self._steps.get(key, {}), **figures}

    def go_back(self, step: int) -> None:
        """Forget a step and all after it."""
        self._steps = {key: entry for key, entry in self._steps.items() if int(key) < step}

    def own_after(self, step: int) -> list[int]:
        """Steps after this one of which a round of the site's own is noted, in order."""
        return sorted(int(key) for key, entry in self._steps.items() if int(key) > step and "weight" in entry)

    def steps(self) -> list[dict[str, Any]]:
        """The entries in the order of the run, each with the name of its `step`."""
        return [dict(self._steps[key]) for key in sorted(self._steps)]

    def numbered(self) -> dict[int, dict[str, Any]]:
        """The entries by number of their step."""
        return {int(key): dict(entry) for key, entry in self._steps.items()}
