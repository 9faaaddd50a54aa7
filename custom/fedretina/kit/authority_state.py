"""The folder where central provisioning keeps the authority's private key and everyone's: who may read it."""

from __future__ import annotations

from pathlib import Path

from fedretina.errors import DataError
from fedretina.kit.findings import Finding, bad, good

STATE = "cert.json"
"""FLARE's file of all certificates and keys; `nvflare provision` gives it the rights that the shell's umask leaves."""

BACKUP = f"{STATE}.before_renewal"
"""The file of before the last renewal."""

WHOEVER_READ_IT = (
    "Whoever read it can make a certificate in anyone's name: if that may have happened, found a new authority and "
    "provision everyone anew."
)


def state_beside(kit: Path) -> Path | None:
    """The state folder of the workspace that a kit lies in (`WORKSPACE/fedretina/prod_NN/<kit>`), if it lies in one."""
    state = kit.resolve().parent.parent / "state"
    try:
        return state if (state / STATE).is_file() else None
    except PermissionError:  # closed to whoever asks, as it should be
        return None


def open_to_others(state: Path) -> list[str]:
    """What in a state folder other users of the machine may read or write: words for a sentence."""
    return [path.name for path in _secrets(state) if path.stat().st_mode & 0o077]


def make_private(state: Path) -> None:
    """Take group's and others' rights off a state folder: 0700, and 0600 for what is in it.

    Raises:
        DataError: They cannot be changed.
    """
    for path in _secrets(state):
        try:
            path.chmod(0o700 if path.is_dir() else 0o600)
        except OSError as error:
            raise DataError(f"the rights of {path} cannot be changed ({error}): run it as their owner.") from error


def state_finding(state: Path) -> Finding:
    """Whether the authority's key is its owner's alone."""
    faults = open_to_others(state)
    if not faults:
        return good("authority's key", f"the owner's alone; keep {state} offline, encrypted and backed up")
    return bad(
        "authority's key",
        f"other users of this machine may read {' and '.join(faults)} of {state}",
        f"`chmod -R go= {state}`. {WHOEVER_READ_IT}",
    )


def _secrets(state: Path) -> list[Path]:
    # The folder's own rights shut its files; the files' hold where the folder is copied or moved.
    return [path for path in (state, state / STATE, state / BACKUP) if path.exists()]
