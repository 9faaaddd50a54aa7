"""The folder where central provisioning keeps the authority's private key and everyone's.

Who may read it, and letting it forget a certificate that is to be renewed.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from fedretina.errors import DataError, SettingsError
from fedretina.kit.findings import Finding, bad, good
from fedretina.kit.startup_kit import read_object
from fedretina.storage import write_text

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


def days_left(state: Path) -> dict[str, float]:
    """Days until each certificate of a state folder ends, the authority's first, then by name.

    Raises:
        DataError: The folder is no state folder of FLARE's provisioning.
    """
    held = _held(state)
    now = datetime.now(UTC)
    texts = {"authority": str(held["root_cert"])} | {
        name: entry["cert"] for name, entry in sorted(held.items()) if isinstance(entry, dict) and "cert" in entry
    }
    try:
        certificates = {name: x509.load_pem_x509_certificate(text.encode()) for name, text in texts.items()}
    except ValueError as error:
        raise DataError(f"{state / STATE} holds a damaged certificate: restore it from a backup.") from error
    return {name: (found.not_valid_after_utc - now).total_seconds() / 86_400 for name, found in certificates.items()}


def forget(state: Path, names: list[str]) -> None:
    """Let provisioning forget the certificates of some participants, so that its next run issues new ones.

    The authority, and everyone else's certificate and key, stay as they are. The old file is kept beside the new.

    Raises:
        DataError: The folder is no state folder of FLARE's provisioning.
        SettingsError: A name is not in it.
        StateError: The disk is full or not writable.
    """
    held = _held(state)
    unknown = sorted(name for name in names if not isinstance(held.get(name), dict))
    if unknown:
        known = ", ".join(sorted(name for name, entry in held.items() if isinstance(entry, dict)))
        raise SettingsError(f"{unknown[0]} has no certificate in this state: it holds those of {known}.")
    path = state / STATE
    old = path.read_text(encoding="utf-8")
    for target, text in (
        (state / BACKUP, old),
        (path, json.dumps({name: entry for name, entry in held.items() if name not in names})),
    ):
        write_text(target, text, mode=0o600)  # both hold the authority's private key


def _held(state: Path) -> dict[str, object]:
    held = read_object(state / STATE)
    if "root_cert" not in held:
        raise DataError(f"{state / STATE} holds no authority: name the `state` folder of the provisioning workspace.")
    return held
