"""Knocking at the server's door with the site's certificate, without registering: is it there, and what time is it?

FLARE's own preflight check registers with the site's kit and takes the registration of a running site away. This is one
TLS handshake and one HTTP request for a page that is not there; the answer carries the server's clock.
"""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from fedretina.kit.startup_kit import StartupKit


class Door(NamedTuple):
    """What a knock brought.

    Attributes:
        problem: Why the server was not reached, in a sentence; empty when it was.
        ahead_s: Seconds that this machine's clock is ahead of the server's; None when the server does not say.
    """

    problem: str
    ahead_s: float | None = None


def knock(kit: StartupKit, timeout_s: float = 10.0) -> Door:
    """Connect as the site would, over mutual TLS, and ask for a page that is not there."""
    host, port = kit.target
    try:
        said = _ask(kit, host, port, timeout_s)
    except ssl.SSLCertVerificationError as error:
        return Door(f"{host}:{port} is not the server of this kit: {error.verify_message}")
    except (ssl.SSLError, ConnectionError) as error:
        return Door(f"{host}:{port} refused this site's certificate, or something on the way did ({error})")
    except OSError as error:
        return Door(f"{host}:{port} cannot be reached ({error}): let the firewall pass outbound TCP to it")
    if not said:
        return Door(f"{host}:{port} refused this site's certificate")
    return Door("", _ahead(said))


def _ask(kit: StartupKit, host: str, port: int, timeout_s: float) -> str:
    context = ssl.create_default_context(cafile=str(kit.root_path))
    context.load_cert_chain(kit.certificate_path, kit.key_path)
    with (
        socket.create_connection((host, port), timeout_s) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        secure.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return secure.recv(4096).decode("latin-1")


def _ahead(said: str) -> float | None:
    """Seconds that this clock is ahead of the date in an HTTP answer."""
    now = datetime.now(UTC)
    dates = [line.partition(":")[2].strip() for line in said.splitlines() if line.lower().startswith("date:")]
    try:
        return (now - parsedate_to_datetime(dates[0])).total_seconds() if dates else None
    except ValueError:
        return None
