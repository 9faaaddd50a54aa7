"""Certificates that should not open the server's door, and knocking there as any program could."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from federation import wait_for

KNOCK = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def expire(kit: Path, state: Path) -> None:
    """Give a site's kit a certificate of the real authority, for its own key, that ended yesterday."""
    certify(kit / "startup" / "client.crt", state, days=(-30, -1))


def not_yet(kit: Path, state: Path) -> None:
    """The same, one that begins tomorrow."""
    certify(kit / "startup" / "client.crt", state, days=(1, 300))


def certify(path: Path, state: Path, days: tuple[float, float]) -> None:
    """Give a kit another certificate of the real authority, for its own key.

    Args:
        path: The certificate that is replaced.
        state: Where provisioning keeps the authority's key.
        days: When it begins and ends, in days from now.
    """
    held = json.loads((state / "cert.json").read_text())
    authority = serialization.load_pem_private_key(held["root_pri_key"].encode(), password=None)
    old = x509.load_pem_x509_certificate(path.read_bytes())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    path.write_bytes(builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


@contextmanager
def connected(port: int, kit: Path, name: str) -> Iterator[Any]:
    """Connect to the server with a kit's certificate in a name of one's choice, as code of one's own could."""
    from nvflare.fuel.f3.cellnet.cell import Cell

    files = {"ca_cert": "rootCA.pem", "client_cert": "client.crt", "client_key": "client.key"}
    credentials = {name: str(kit / "startup" / file) for name, file in files.items()}
    url = f"http://localhost:{port}"
    cell = Cell(name, url, secure=True, credentials=credentials, create_internal_listener=False)
    cell.start()
    try:
        yield cell
    finally:
        cell.stop()


@contextmanager
def with_the_servers_token(port: int, kit: Path, name: str) -> Iterator[Any]:
    """The same, all messages with the server's own token, which it sends to whoever greets it."""
    from nvflare.fuel.f3.cellnet.defs import IdentityChallengeKey, MessageHeaderKey, ReturnCode
    from nvflare.private.defs import CellChannel, CellChannelTopic, CellMessageHeaderKeys, new_cell_message
    from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

    nvflare_fobs_initialize()
    carried = (CellMessageHeaderKeys.CLIENT_NAME, CellMessageHeaderKeys.TOKEN, CellMessageHeaderKeys.TOKEN_SIGNATURE)
    with connected(port, kit, name) as cell:

        def greeted() -> Any:
            words = {IdentityChallengeKey.COMMON_NAME: kit.name, IdentityChallengeKey.NONCE: "1"}
            said = cell.send_request(
                channel=CellChannel.SERVER_MAIN,
                topic=CellChannelTopic.Challenge,
                target="server",
                request=new_cell_message(words),
                timeout=10,
                optional=True,
            )
            return said if said.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK else None

        said = wait_for(greeted, "the server's answer")  # the connection may take a moment
        token = {key: said.get_header(key) for key in carried}
        assert token[CellMessageHeaderKeys.TOKEN], said.headers
        cell.core_cell.add_outgoing_request_filter("*", "*", lambda message: message.add_headers(token))
        yield cell


def register_aside(port: int, kit: Path, site: str) -> None:
    """Register as a site over a connection of another name that the kit's certificate opens.

    Raises:
        FLCommunicationError: The server refuses.
    """
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal
    from nvflare.private.defs import ClientType
    from nvflare.private.fed.authenticator import Authenticator

    root, certificate, key = (str(kit / "startup" / name) for name in ("rootCA.pem", "client.crt", "client.key"))
    with connected(port, kit, f"{kit.name}.aside") as cell:
        Authenticator(
            cell, "fedretina", site, ClientType.REGULAR, "server", True, root, key, certificate, 20.0, 1.0, 60.0
        ).authenticate(FLContext(), Signal())


def knock(port: int, kit: Path | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """Speak TLS, of a version at most, and HTTP to the server with a kit's certificate, or with none.

    Returns:
        What it says, if anything.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")  # or this end alone would refuse an old version
    context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, newest
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # what the server checks is the question here
    if kit is not None:
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(KNOCK)
            return secure.recv(4096)
    except (ssl.SSLError, ConnectionError):
        return b""
