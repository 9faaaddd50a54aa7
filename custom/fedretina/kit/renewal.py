"""Renewal in central provisioning: what FLARE's state folder holds, and letting it forget a certificate."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509

from fedretina.errors import DataError, SettingsError
from fedretina.kit.authority_state import BACKUP, STATE
from fedretina.kit.startup_kit import read_object
from fedretina.storage import write_text


def days_left(state: Path) -> dict[str, float]:
    """Days until each certificate of a state folder ends, the authority's first, then by name.

    Raises:
        DataError: The folder is no state folder of FLARE's provisioning.
    """
    from datetime import UTC, datetime

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
    import json

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
