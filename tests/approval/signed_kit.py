"""A site's startup kit with an authority of its own, as far as approvals look at one: certificates, key, settings."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from fedretina.kit.startup_kit import StartupKit, open_kit


@cache
def _key(name: str) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def certificate(name: str, authority: str = "authority") -> bytes:
    """A certificate (PEM) of a name, signed by an authority; an authority signs its own."""
    now = datetime.now(UTC)

    def named(common: str) -> x509.Name:
        organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"{common} eye hospital")
        role = x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, "lead")
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common), organisation, role])

    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(authority))
        .public_key(_key(name).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=300))
        .add_extension(x509.BasicConstraints(name == authority, None), critical=True)
    )
    return builder.sign(_key(authority), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def write_kit(folder: Path, name: str = "site-1", authority: str = "authority", **settings: Any) -> StartupKit:
    """Write the kit of a site, its settings beside it, and open it."""
    startup, local = folder / "startup", folder / "local"
    for place in (startup, local):
        place.mkdir(parents=True, mode=0o700)
    (startup / "fed_client.json").write_text(json.dumps({"client": {}, "servers": [{"service": {"target": "h:1"}}]}))
    (startup / "rootCA.pem").write_bytes(certificate(authority, authority))
    (startup / "client.crt").write_bytes(certificate(name, authority))
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (startup / "client.key").write_bytes(_key(name).private_bytes(*form))
    scope = {"name": "fedretina", "properties": {"fedretina": settings}} if settings else {"name": "fedretina"}
    (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "fedretina"}))
    folder.chmod(0o700)
    return open_kit(folder)
