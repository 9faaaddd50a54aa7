"""Keys that stand for patients: a keyed hash whose key never leaves the site."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from fedretina.errors import DataError

SALT = "patient_salt"  # the file beside a manifest, where no other is named
_BYTES = 32
_DIGITS = 32  # 128 bits of the hash: no two of a hospital's patients meet


def site_salt(path: Path) -> bytes:
    """Read the site's salt, or draw one and store it for its owner alone.

    The salt must be secret: patient numbers are few enough to try them all. So it comes from the operating system
    and not from a run's seed, and two sites, or two salts, give one patient different keys.

    Raises:
        DataError: The file cannot be read or written, is damaged, or others may read it.
    """
    try:
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as handle:
                handle.write(secrets.token_hex(_BYTES) + "\n")
        except FileExistsError:
            pass
        if path.stat().st_mode & 0o077:
            raise DataError(f"others may read {path}, the key of the patients: run `chmod 600` on it.")
        salt = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise DataError(f"the salt {path} cannot be used ({error}): restore it, or name another file.") from error
    if len(salt) < _BYTES:
        raise DataError(f"the salt {path} has {len(salt)} bytes, expected {_BYTES}: restore it, or name another file.")
    return salt


def keyed(salt: bytes, purpose: str, name: str) -> str:
    """HMAC-SHA256 of a name, 32 hex digits; the same name has another key for another purpose."""
    return hmac.new(salt, f"{purpose}\x1f{name}".encode(), hashlib.sha256).hexdigest()[:_DIGITS]


def is_key(name: str) -> bool:
    """Whether a name has the form of a key."""
    return len(name) == _DIGITS and set(name) <= set("0123456789abcdef")
