"""The sites' answers to one step: what was accepted, what was refused and why, and whether it is enough."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedretina.aggregation.spool import Spool
from fedretina.errors import QuorumError, StateError
from fedretina.exchange.payload import Payload, tensors_bytes
from fedretina.plurals import counted


class StepAnswers:
    """Collects the answers to one attempt at a step; begins empty, and erases what an earlier attempt left behind.

    It judges no answer: what is put here was admitted.

    Attributes:
        spool: The tensors of the accepted answers.
        scalars: The scalars of the accepted answers, by site.
        refused: Why a site has no part in the step, by site.

    Args:
        folder: Of the spool.
    """

    def __init__(self, folder: Path) -> None:
        self.spool = Spool(folder)
        self.scalars: dict[str, dict[str, float]] = {}
        self.refused: dict[str, str] = {}
        self._bytes: dict[str, int] = {}
        self._unstored: StateError | None = None

    def put(self, site: str, payload: Payload) -> None:
        """Take one site's answer; an earlier refusal of that site is forgotten.

        Raises:
            StateError: The disk is full; the answer is dropped.
        """
        if payload.tensors:
            try:
                self.spool.put(site, payload.tensors)
            except StateError as error:
                self._unstored = error
                raise
        self._bytes[site] = tensors_bytes(payload.tensors)
        self.scalars[site] = {name: float(payload.scalars[name]) for name in sorted(payload.scalars)}
        self.refused.pop(site, None)

    def keep(self, record: Mapping[str, Any], asked: Collection[str]) -> None:
        """Begin with the answers to a step that was closed before.

        Args:
            record: The step's record.
            asked: Sites that are asked once more; why they had no part is forgotten.
        """
        self.scalars = {site: dict(scalars) for site, scalars in record["scalars"].items()}
        self.refused = {site: why for site, why in record["refused"].items() if site not in asked}
        self._bytes = dict(record["bytes_up"])

    def refuse(self, site: str, why: str) -> None:
        """Note why a site has no part, unless it has answered already."""
        if site not in self.scalars:
            self.refused[site] = why

    def withdraw(self, site: str, why: str) -> None:
        """Take back an answer that was put here: it does not count after all."""
        self.spool.discard(site)
        self.scalars.pop(site, None)
        self._bytes.pop(site, None)
        self.refuse(site, why)

    def require(self, quorum: int, step: str) -> None:
        """Refuse to go on with too few answers.

        Args:
            quorum: Fewest accepted answers.
            step: Name of the step.

        Raises:
            QuorumError: There are fewer.
            StateError: There are fewer, and one of them because the disk is full.
        """
        if len(self.scalars) >= quorum:
            return
        if self._unstored is not None:  # asking again would let every site train for a disk that is full
            raise self._unstored
        reasons = "; ".join(f"{site}: {why}" for site, why in sorted(self.refused.items())) or "no answer"
        accepted = counted(len(self.scalars), "update was", "updates were")
        sentence = f"{step}: {accepted} accepted, the quorum is {quorum} ({reasons})."
        raise QuorumError(sentence).telling(sentence)  # the reasons are the words that sites let go

    def record(self) -> dict[str, Any]:
        """The answers' part in the step's record, sites in alphabetical order: scalars, refusals, bytes."""
        return {
            "scalars": dict(sorted(self.scalars.items())),
            "refused": dict(sorted(self.refused.items())),
            "bytes_up": dict(sorted(self._bytes.items())),
        }
