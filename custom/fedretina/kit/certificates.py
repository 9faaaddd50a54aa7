"""Certificates of a kit: who they name, how long they hold, whether they belong to their key and to the consortium."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from fedretina.errors import DataError


@dataclass(frozen=True)
class Certificate:
    """What a certificate says.

    Attributes:
        name: Common name: the participant.
        organisation: Organisation, empty when it names none.
        role: An admin's role, empty for server and site.
        begins: First moment of its validity (UTC).
        ends: Last moment of its validity (UTC).
    """

    name: str
    organisation: str
    role: str
    begins: datetime
    ends: datetime

    def days_left(self, now: datetime | None = None) -> float:
        """Days until it ends; negative when it has."""
        return (self.ends - (now or datetime.now(UTC))).total_seconds() / 86_400


def read_certificate(path: Path) -> Certificate:
    """Read a certificate (PEM).

    Raises:
        DataError: The file is missing or is no certificate.
    """
    found = _load(path)

    def field(oid: x509.ObjectIdentifier) -> str:
        values = found.subject.get_attributes_for_oid(oid)
        return str(values[0].value) if values else ""

    return Certificate(
        name=field(NameOID.COMMON_NAME),
        organisation=field(NameOID.ORGANIZATION_NAME),
        role=field(NameOID.UNSTRUCTURED_NAME),
        begins=found.not_valid_before_utc,
        ends=found.not_valid_after_utc,
    )


def is_issued_by(path: Path, root: Path) -> bool:
    """Whether a certificate was signed by a root's key.

    Raises:
        DataError: A file is missing or is no certificate.
    """
    try:
        _load(path).verify_directly_issued_by(_load(root))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def belongs_to_key(path: Path, key: Path) -> bool:
    """Whether a certificate and a private key (PEM, no password) are a pair.

    Raises:
        DataError: A file is missing or unreadable.
    """
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{key} is no readable private key: restore it from the kit.") from error
    return private.public_key() == _load(path).public_key()


def _load(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no readable certificate: restore it from the kit.") from error
