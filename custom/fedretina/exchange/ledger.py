"""The site's ledger: a line for every answer and sentence that leaves and every approval, for its officer."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedretina.errors import StateError
from fedretina.locks import append_line, held_lines
from fedretina.storage import sync
from fedretina.told import one_line

if TYPE_CHECKING:  # a site's lasting process notes refusals, and is to stay without torch
    from fedretina.exchange.partition import Partition
    from fedretina.exchange.payload import Payload, Stamp

LEDGER = "ledger.jsonl"
"""In a site's folder of a run."""
REFUSALS = "refusals.jsonl"
"""In a kit's folder: what the server was told of jobs that were not taken, of which there is no run."""


def ledgers(root: Path, site: str | None = None, run: str | None = None) -> list[Path]:
    """Ledgers below a state root, `RUN/SITE/ledger.jsonl`, in the order of their paths.

    Args:
        root: The state root.
        site: Only those kept under this name; None for every name. A hospital that was renamed has some under its old
            one, and what they say of its images holds as before.
        run: Only those of this run; None for all.
    """
    run, site = ("*" if word is None else glob.escape(word) for word in (run, site))
    return sorted(root.glob(f"{run}/{site}/{LEDGER}"))


class Ledger:
    """Appends to a file of JSON lines; a line is durable before the message it describes may go.

    Args:
        path: The ledger's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note_words(self, stamp: Stamp, sentence: str) -> None:
        """Write down the sentence of an error that is about to leave.

        Args:
            stamp: Of the order that it answers.
            sentence: What leaves.

        Raises:
            StateError: The line cannot be written, so the sentence must not go.
        """
        place = {"run": stamp.run, "phase": stamp.phase, "round": stamp.round, "attempt": stamp.attempt}
        self._append({**place, "tensors": {}, "scalars": {}, "bytes": 0, "digest": "", "words": sentence})

    def note_refusal(self, job: str, sentence: str) -> None:
        """Write down the sentence with which a job is about to be refused.

        Args:
            job: FLARE's id of the job, as the server sent it.
            sentence: What leaves.

        Raises:
            StateError: The line cannot be written, so the sentence must not go.
        """
        place = {"run": "", "phase": "deploy", "round": 0, "attempt": 0, "job": one_line(job, 100)}
        self._append({**place, "tensors": {}, "scalars": {}, "bytes": 0, "digest": "", "words": sentence})

    def note_decision(self, made: Mapping[str, Any]) -> None:
        """Write down what the hospital decided about a plan; nothing leaves with it.

        Args:
            made: The decision, signed (`kit.approvals`).

        Raises:
            StateError: The line cannot be written, so the decision does not hold.
        """
        place = {"run": str(made["run"]), "phase": str(made["decision"]), "round": 0, "attempt": 0}
        self._append({**place, "tensors": {}, "scalars": {}, "bytes": 0, "digest": "", "approval": dict(made)})

    def note(self, payload: Payload, parts: Partition, policy: Mapping[str, Any] | None = None) -> None:
        """Write down stamp, kinds, scalars, bytes and digest of what is about to leave.

        Args:
            payload: What is about to leave.
            parts: The network's partition.
            policy: What the site's policy did to it.

        Raises:
            StateError: The line cannot be written, so the message must not go.
        """
        from fedretina.exchange.payload import tensors_bytes, tensors_digest

        kinds: dict[str, int] = {}
        for key in payload.tensors:
            kinds[parts.kinds[key].value] = kinds.get(parts.kinds[key].value, 0) + 1
        line = {
            "run": payload.stamp.run,
            "phase": payload.stamp.phase,
            "round": payload.stamp.round,
            "attempt": payload.stamp.attempt,
            "tensors": dict(sorted(kinds.items())),
            "scalars": {name: payload.scalars[name] for name in sorted(payload.scalars)},
            "bytes": tensors_bytes(payload.tensors),
            "digest": tensors_digest(payload.tensors),
            **(policy or {}),
        }
        self._append(line)

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            with held_lines(self._path) as (handle, before):  # a service and a command may both write
                told = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **line}
                append_line(handle, json.dumps(told).encode())
                if not before:
                    sync(self._path.parent)
        except OSError as error:
            raise StateError(f"{self._path} cannot be written ({error}), so nothing leaves: make room.") from error

    def lines(self) -> list[dict[str, Any]]:
        """Read the ledger; an empty list when nothing has left.

        A last line that was cut off by a full disk or a power cut is left out: what it was to describe did not leave.

        Raises:
            StateError: The file cannot be read, or a line before the last is damaged.
        """
        if not self._path.exists():
            return []
        try:
            text = self._path.read_text(encoding="utf-8")
            whole, _, _ = text.rpartition("\n")
            return [json.loads(line) for line in whole.splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise StateError(f"{self._path} cannot be read ({error}): restore it from a backup.") from error
