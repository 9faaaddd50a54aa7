"""Knocking at the server's door with the site's certificate, without registering: is it there, and what time is it?

FLARE's own preflight check registers with the site's kit and takes the registration of a running site away. This is one
TLS handshake and one HTTP request for a page that is not there; the answer carries the server's clock. A second
handshake asks whether the server takes an old version of TLS.
"""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from fedretina.kit.startup_kit import StartupKit

# OpenSSL's own numbers, which Python's ssl has no names for.
_NOT_YET_VALID = 9
_EXPIRED = 10
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)


class Door(NamedTuple):
    """What a knock brought.

    Attributes:
        problem: Why the server was not reached, in a sentence; empty when it was.
        ahead_s: Seconds that this machine's clock is ahead of the server's; None when the server does not say.
        timely: Whether the server's certificate holds now, by this machine's clock.
        tls: The version of TLS that was agreed on, such as "TLSv1.3"; empty when none was.
        takes_old: Whether the server takes TLS 1.2 as well.
    """

    problem: str
    ahead_s: float | None = None
    timely: bool = True
    tls: str = ""
    takes_old: bool = False


class _Answer(NamedTuple):
    """What the server said, and over which version of TLS."""

    text: str
    tls: str


def knock(kit: StartupKit, timeout_s: float = 10.0) -> Door:
    """Connect as the site would, over mutual TLS, and ask for a page that is not there."""
    host, port = kit.target
    try:
        said = _ask(kit, host, port, timeout_s)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
            return _untimely(kit, error, timeout_s)
        return Door(f"{host}:{port} is not the server of this kit: {error.verify_message}")
    except (ssl.SSLError, ConnectionError) as error:
        return Door(f"{host}:{port} refused this site's certificate, or something on the way did ({error})")
    except OSError as error:
        return Door(f"{host}:{port} cannot be reached ({error}): let the firewall pass outbound TCP to it")
    if not said.text:
        return Door(f"{host}:{port} refused this site's certificate")
    return Door("", _ahead(said.text), tls=said.tls, takes_old=_takes_old(kit, host, port, timeout_s))


def _untimely(kit: StartupKit, error: ssl.SSLCertVerificationError, timeout_s: float) -> Door:
    """The server's certificate does not hold by this clock: ask the server for its own time, all else being right."""
    host, port = kit.target
    word = "is not yet valid" if error.verify_code == _NOT_YET_VALID else "has ended"
    problem = f"the certificate of {host}:{port} {word} by this machine's clock"
    try:
        said = _ask(kit, host, port, timeout_s, any_time=True)
    except OSError:
        return Door(problem, timely=False)
    return Door(problem, _ahead(said.text), timely=False)


def _takes_old(kit: StartupKit, host: str, port: int, timeout_s: float) -> bool:
    try:
        return bool(_ask(kit, host, port, timeout_s, old=True).text)
    except OSError:  # of which ssl.SSLError is one
        return False


def _ask(kit: StartupKit, host: str, port: int, timeout_s: float, any_time: bool = False, old: bool = False) -> _Answer:
    context = ssl.create_default_context(cafile=str(kit.root_path))
    context.load_cert_chain(kit.certificate_path, kit.key_path)
    if any_time:
        context.verify_flags |= _NO_CHECK_TIME
    if old:
        context.options &= ~ssl.OP_NO_TLSv1_2  # which this process's own OPENSSL_CONF may have set
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection((host, port), timeout_s) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        secure.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return _Answer(secure.recv(4096).decode("latin-1"), secure.version() or "")


def _ahead(said: str) -> float | None:
    """Seconds that this clock is ahead of the date in an HTTP answer."""
    now = datetime.now(UTC)
    dates = [line.partition(":")[2].strip() for line in said.splitlines() if line.lower().startswith("date:")]
    try:
        return (now - parsedate_to_datetime(dates[0])).total_seconds() if dates else None
    except ValueError:
        return None
