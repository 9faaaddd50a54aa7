"""A startup kit as FLARE's provisioning writes it: whose it is, where its files lie, what its certificates say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from fedretina.errors import DataError

Role = Literal["server", "site", "admin"]
_CONFIGS: dict[str, Role] = {"fed_server.json": "server", "fed_client.json": "site", "fed_admin.json": "admin"}
ROOT_CERTIFICATE = "rootCA.pem"


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


@dataclass(frozen=True)
class StartupKit:
    """One participant's kit.

    Attributes:
        folder: The kit's folder, with `startup` and `local` in it.
        role: Whose kit it is.
        config: What the kit's file in `startup` says.
        certificate: The participant's certificate.
    """

    folder: Path
    role: Role
    config: dict[str, Any]
    certificate: Certificate

    @property
    def name(self) -> str:
        """The participant's name, as its certificate says it."""
        return self.certificate.name

    @property
    def config_path(self) -> Path:
        """The kit's file in `startup`."""
        name = next(name for name, role in _CONFIGS.items() if role == self.role)
        return self.folder / "startup" / name

    @property
    def certificate_path(self) -> Path:
        """The participant's certificate."""
        return self.folder / "startup" / ("server.crt" if self.role == "server" else "client.crt")

    @property
    def key_path(self) -> Path:
        """The participant's private key."""
        return self.certificate_path.with_suffix(".key")

    @property
    def root_path(self) -> Path:
        """The certificate of the consortium's authority."""
        return self.folder / "startup" / ROOT_CERTIFICATE

    @property
    def service(self) -> dict[str, Any]:
        """The entry of the federation's server in the kit's file; empty in an admin's kit."""
        servers = self.config.get("servers") or [{}]
        entry: dict[str, Any] = servers[0]
        return entry

    @property
    def target(self) -> tuple[str, int]:
        """Host and port of the server, as this kit knows them."""
        if self.role == "admin":
            admin = self.config.get("admin") or {}
            return str(admin.get("host", "")), int(admin.get("port", 0))
        host, _, port = str((self.service.get("service") or {}).get("target", "")).partition(":")
        return host, int(port) if port.isdigit() else 0

    @property
    def scheme(self) -> str:
        """How this kit speaks with the server, or the server listens: FLARE finds the driver by it."""
        words = self.config.get("admin") if self.role == "admin" else self.service.get("service")
        return str((words or {}).get("scheme", "grpc"))

    def local(self, name: str) -> dict[str, Any]:
        """Read a file of `local`: the hospital's own if there is one, else the default that came with the kit.

        Raises:
            DataError: The file cannot be read.
        """
        for path in (self.folder / "local" / name, self.folder / "local" / f"{name}.default"):
            if path.exists():
                return read_object(path)
        return {}


def open_kit(folder: Path) -> StartupKit:
    """Read a kit.

    Raises:
        DataError: The folder is no startup kit, or a file of it cannot be read.
    """
    folder = folder.resolve()
    found = [name for name in _CONFIGS if (folder / "startup" / name).is_file()]
    if len(found) != 1:
        raise DataError(
            f"{folder} is no startup kit: it has no startup/ with one of {', '.join(_CONFIGS)}. "
            "Name the folder that provisioning wrote for one participant."
        )
    role = _CONFIGS[found[0]]
    certificate = "server.crt" if role == "server" else "client.crt"
    return StartupKit(
        folder,
        role,
        read_object(folder / "startup" / found[0]),
        read_certificate(folder / "startup" / certificate),
    )


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        DataError: The file cannot be read or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): restore it from the kit.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} holds no JSON object: restore it from the kit.")
    return found


def read_certificate(path: Path) -> Certificate:
    """Read a certificate (PEM).

    Raises:
        DataError: The file is missing or is no certificate.
    """
    found = _load_certificate(path)

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
        _load_certificate(path).verify_directly_issued_by(_load_certificate(root))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def submitter_of(app: Path, kit: StartupKit) -> Certificate | None:
    """Who signed a job, by the certificate that FLARE laid into it and has checked; None for one that is not signed."""
    path = app / ".__nvfl_submitter.crt"
    try:
        return read_certificate(path) if path.is_file() and is_issued_by(path, kit.root_path) else None
    except DataError:
        return None


def belongs_to_key(path: Path, key: Path) -> bool:
    """Whether a certificate and a private key (PEM, no password) are a pair.

    Raises:
        DataError: A file is missing or unreadable.
    """
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{key} is no readable private key: restore it from the kit.") from error
    return private.public_key() == _load_certificate(path).public_key()


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no readable certificate: restore it from the kit.") from error
