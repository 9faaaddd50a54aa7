"""The stamp on every message: which run, phase, round and attempt it belongs to, and what both ends agreed on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fedretina.errors import RefusedError, SettingsError

SERVER = "server"
_LONGEST = 500  # characters of a reason
ATTEMPTS = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Stamp(NamedTuple):
    """Where a message belongs.

    Attributes:
        run: Name of the run; also a folder's name, so letters, digits, '.', '_' and '-' only.
        phase: Name of the phase within the run.
        round: Round within the phase, from 0.
        attempt: How often this round was begun before; a repeat refuses the answers of earlier attempts. Thousands
            (`ATTEMPTS`) count how often the run went back, so that answers to what it dropped are refused as well.
        digest: SHA-256 over settings, partition and version (`Experiment.digest`).
    """

    run: str
    phase: str
    round: int
    attempt: int
    digest: str

    def require(self, expected: Stamp) -> None:
        """Refuse a message whose stamp differs from the expected one.

        Raises:
            RefusedError: A sentence that names the field that differs.
        """
        if self.run != expected.run:
            raise RefusedError(f"the message belongs to run {self.run[:100]!r}, this is run {expected.run!r}.")
        self.require_digest(expected.digest)
        if self[1:4] != expected[1:4]:
            raise RefusedError(
                f"the message is for {one_line(self.phase, 100)} round {self.round} attempt {self.attempt}, "
                f"expected {expected.phase} round {expected.round} attempt {expected.attempt}."
            )

    def require_digest(self, digest: str) -> None:
        """Refuse a message from an end with other settings, another partition or another version.

        Raises:
            RefusedError: A sentence with the first digits of both digests.
        """
        if self.digest != digest:
            raise RefusedError(
                f"the two ends disagree on settings, network partition or version (digest {self.digest[:12]} "
                f"against {digest[:12]}): install the same fedretina at both ends and send the same job to both."
            )


def one_line(text: str, most: int = _LONGEST) -> str:
    """What another end says, as it may stand in a log or a record: one printable line, cut to so many characters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 3] + "..."


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
