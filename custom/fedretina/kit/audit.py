"""An end's audit log: who signed in, which job was taken or refused, when it began and ended, what was approved.

One file of JSON lines that is only ever appended to. Each line holds the SHA-256 of the line before it, so a line that
is changed, taken out or put in later breaks the chain at a place that `verify` names. How long the chain was is kept
beside it, so that a cut end is noticed, too. Whoever may write both files can write both anew from the first line on;
against that helps only a digest that was noted elsewhere, and `verify` takes one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.errors import StateError
from fedretina.locks import append_line, held_lines
from fedretina.storage import read_json, write_json
from fedretina.told import one_line

AUDIT = "audit.jsonl"
"""In a kit's folder, beside FLARE's own `audit.log`."""
_HEAD = "audit.head.json"
_FIRST = "0" * 64
_LONGEST = 500
_OWN = frozenset({"number", "time", "event", "previous"})


class Verified(NamedTuple):
    """What was found in an audit log.

    Attributes:
        events: The lines that can be read, in order.
        digest: SHA-256 of the last line; of none, 64 zeros.
        faults: What is wrong, a sentence each, in the order of the file; empty when nothing is.
        unfinished: Whether the last line was cut off while it was written, by a full disk or a power cut.
    """

    events: tuple[Mapping[str, Any], ...]
    digest: str
    faults: tuple[str, ...]
    unfinished: bool


class AuditLog:
    """Appends to the audit log of a kit, from any of its processes, and verifies it.

    Args:
        folder: The kit's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / AUDIT
        self._head = folder / _HEAD

    def note(self, event: str, **fields: str | int) -> None:
        """Append an event; it is on the disk when this returns.

        Args:
            event: What happened, in a few words, such as "job refused".
            fields: Names, ids, numbers and sentences that belong to it; nothing of a patient.

        Raises:
            StateError: It cannot be written.
            ValueError: A field has the name of one that every line has.
        """
        if taken := _OWN & fields.keys():
            raise ValueError(f"a line of the audit log has a {min(taken)!r} of its own: name the field otherwise.")
        said = {name: one_line(value, _LONGEST) if isinstance(value, str) else value for name, value in fields.items()}
        try:
            with held_lines(self._path, 0o600) as (handle, whole):
                number, previous = _last(whole)
                when = datetime.now(UTC).isoformat(timespec="seconds")
                line = {"number": number + 1, "time": when, "event": event, **said, "previous": previous}
                data = json.dumps(line).encode()
                head, start = {"number": number + 1, "digest": _digest(data)}, handle.seek(0, os.SEEK_END)
                try:
                    append_line(handle, data)
                    write_json(self._head, head)
                except (OSError, StateError):
                    # Both files name the same last event, or `verify` would take the next ones for another's. The head
                    # may be there all the same: it is renamed first, and only then is the disk asked for its name.
                    if not self._ends_with(head):
                        handle.truncate(start)
                    raise
        except (OSError, ValueError, KeyError) as error:
            raise StateError(
                f"{self._path} cannot be written ({error}): make room, or look at it with `fedretina site audit`."
            ) from error

    def verify(self, noted: tuple[int, str] | None = None) -> Verified:
        """Follow the chain from the first line to the last.

        Args:
            noted: Number of a line and its SHA-256 (or the beginning of it), as noted elsewhere before.

        Raises:
            StateError: The file cannot be read.
        """
        try:
            content = self._path.read_bytes() if self._path.exists() else b""
        except OSError as error:
            raise StateError(f"{self._path} cannot be read ({error}): restore it from a backup.") from error
        whole, _, rest = content.rpartition(b"\n")
        events, faults, digests = [], [], {0: _FIRST}
        number, previous = 0, _FIRST
        for at, data in enumerate(whole.split(b"\n") if whole else (), start=1):
            line = _read(data)
            if line is None:
                faults.append(f"line {at} of the file is damaged.")
                number, previous = number + 1, _digest(data)
                continue
            if line["number"] != number + 1:
                faults.append(_jump(number, line["number"], at))
            elif line["previous"] != previous:
                faults.append(
                    f"event {number} is not the one after which event {number + 1} of {line['time']} was written: it "
                    "was changed, or put in another's place."
                    if number
                    else "event 1 does not begin a log: what stood before it was taken out."
                )
            number, previous = int(line["number"]), _digest(data)
            digests[number] = previous
            events.append(line)
        faults += self._end(number, digests)
        if noted is not None and not digests.get(noted[0], "").startswith(noted[1]):
            faults.append(f"event {noted[0]} is not the one whose digest was noted: the log was written anew.")
        return Verified(tuple(events), previous, tuple(faults), bool(rest))

    def _ends_with(self, head: Mapping[str, Any]) -> bool:
        try:
            return read_json(self._head) == head
        except StateError:
            return False

    def _end(self, number: int, digests: Mapping[int, str]) -> list[str]:
        """Compare the end of the chain with where it was; a power cut may leave one event more."""
        if not self._head.exists():
            return [f"{_HEAD}, which says where the log ended, is gone."] if number else []
        try:
            head = read_json(self._head)
            last, digest = int(head["number"]), str(head["digest"])
        except (StateError, KeyError, ValueError, TypeError):
            return [f"{_HEAD}, which says where the log ended, is damaged."]
        if last > number:
            return [f"the end was cut off: the log had {last} events, and ends with event {number}."]
        if digests.get(last) != digest:
            return [f"event {last} was changed after it was written: it was the last one then."]
        if number > last + 1:
            return [f"events {last + 1} to {number} were added by another hand."]
        return []


def _last(whole: bytes) -> tuple[int, str]:
    """Number and digest of the last of whole lines."""
    if not whole:
        return 0, _FIRST
    data = whole.rpartition(b"\n")[2]
    line = _read(data)
    # After a damaged line the log goes on, since what happens from now on matters more; `verify` names the line.
    return (whole.count(b"\n") + 1 if line is None else int(line["number"])), _digest(data)


def _read(data: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(data)
    except ValueError:
        return None
    good = isinstance(line, dict) and line.keys() >= _OWN and isinstance(line["number"], int)
    return line if good else None


def _jump(before: int, found: int, at: int) -> str:
    if found > before + 1:
        gone = f"event {before + 1} was" if found == before + 2 else f"events {before + 1} to {found - 1} were"
        return f"{gone} taken out: event {found} follows event {before}."
    return f"line {at} of the file is event {found}, where event {before + 1} belongs: lines were moved or put in."


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
