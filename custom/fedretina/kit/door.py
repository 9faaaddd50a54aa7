"""A knock at the server's door, as a site or an admin connects: mutual TLS, through its proxy, nothing registered."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID

from fedretina.errors import DataError
from fedretina.kit.proxy import ProxyError, proxy_of
from fedretina.kit.startup_kit import StartupKit
from fedretina.told import one_line

# OpenSSL's own numbers, which Python's ssl has no names for.
_NOT_YET_VALID = 9
_EXPIRED = 10
_NO_KNOWN_AUTHORITY = (18, 19, 20, 21)
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
_REFUSED = "ask the project admin whether the server runs and knows the name {}; see docs/network.md."
_UNKNOWN = "ask your network's administrators for its DNS entry, and the project admin whether the name is still right."
_PASS = "let the firewall pass outbound TCP to it, or name the proxy that does (docs/network.md)"


class Door(NamedTuple):
    """What a knock at the server's door brought.

    FLARE's own preflight check registers with the site's kit and takes the registration of a running site away. A knock
    is one TLS handshake with the kit's certificate and one HTTP request for a page that is not there; the answer
    carries the server's clock. A second handshake asks whether the server takes an old version of TLS.

    Attributes:
        problem: Why the server was not reached, in a sentence; empty when it was.
        ahead_s: Seconds that this machine's clock is ahead of the server's; None when the server does not say.
        timely: Whether the server's certificate holds now, by this machine's clock.
        tls: The version of TLS that was agreed on, such as "TLSv1.3"; empty when none was.
        takes_old: Whether the server takes TLS 1.2 as well.
        begins: First moment of the server's certificate; None where it was not seen.
        ends: Its last moment.
        mend: How to mend the problem, where that is known; else empty.
    """

    problem: str
    ahead_s: float | None = None
    timely: bool = True
    tls: str = ""
    takes_old: bool = False
    begins: datetime | None = None
    ends: datetime | None = None
    mend: str = ""


def knock(kit: StartupKit, timeout_s: float = 10.0) -> Door:
    """Connect as the kit's owner would, over mutual TLS, and ask for a page that is not there."""
    host, port = kit.target
    try:
        said = _ask(kit, host, timeout_s)
    except ssl.SSLCertVerificationError as error:
        untimely = error.verify_code in (_NOT_YET_VALID, _EXPIRED)
        return (_knock_untimely if untimely else _stranger)(kit, error, timeout_s)
    except (OSError, DataError) as error:
        return _closed(kit, error)
    if not said.text:
        return Door(f"{host}:{port} refused this {kit.role}'s certificate", mend=_REFUSED.format(kit.name))
    old = _takes_old(kit, host, timeout_s)
    return Door("", _ahead(said.text), tls=said.tls, takes_old=old, begins=said.begins, ends=said.ends)


def _closed(kit: StartupKit, error: OSError | DataError) -> Door:
    """Why there was no connection, and who can mend it."""
    host, port = kit.target
    if isinstance(error, ProxyError):
        return Door(str(error), mend=error.mend)
    if isinstance(error, DataError):
        return Door(str(error), mend="mend that file, or name another with `fedretina kit harden`.")
    if isinstance(error, ssl.SSLError | ConnectionError) and not isinstance(error, ConnectionRefusedError):
        text = f"{host}:{port} refused this {kit.role}'s certificate, or something on the way did ({error})"
        return Door(text, mend=_REFUSED.format(kit.name))
    if isinstance(error, socket.gaierror):
        return Door(f"this machine knows no address for {host} ({error.strerror})", mend=_UNKNOWN)
    if isinstance(error, ConnectionRefusedError):
        mend = f"ask the project admin whether the server runs; if it does, {_PASS}."
    else:
        mend = f"{_PASS}; if it does pass, ask the project admin."
    return Door(f"{host}:{port} cannot be reached ({error})", mend=mend)


class _Answer(NamedTuple):
    """What the server said, and over which version of TLS."""

    text: str
    tls: str
    begins: datetime | None = None
    ends: datetime | None = None


def _stranger(kit: StartupKit, error: ssl.SSLCertVerificationError, timeout_s: float) -> Door:
    """Another certificate than the consortium's answers: say whose it is, since an inspecting proxy has its own."""
    host, port = kit.target
    text = f"{host}:{port} is not the server of this kit: {error.verify_message}"
    if error.verify_code not in _NO_KNOWN_AUTHORITY:
        return Door(text, mend="the kit names it otherwise than its certificate does: ask the project admin.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent, not this site's certificate
    try:
        with _reach(kit, timeout_s) as plain, context.wrap_socket(plain, server_hostname=host) as secure:
            issuer = x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"").issuer
    except (OSError, ValueError):
        return Door(text)
    named = [issuer.get_attributes_for_oid(oid) for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)]
    who = one_line(", ".join(str(one[0].value) for one in named if one) or "nobody who is named", 100)
    mend = (
        f"if that is your network's inspection of TLS, let {host}:{port} pass unopened: only the site itself can show "
        "its certificate. Else the kit names another server than the consortium's."
    )
    return Door(f"{text}; the certificate that answers is issued by {who}, not by the consortium", mend=mend)


def _reach(kit: StartupKit, timeout_s: float) -> socket.socket:
    """A connection to the server, through the kit's proxy if it names one."""
    proxy = proxy_of(kit)
    if proxy is None:
        return socket.create_connection(kit.target, timeout_s)
    return proxy.open(*kit.target, timeout_s)


def _knock_untimely(kit: StartupKit, error: ssl.SSLCertVerificationError, timeout_s: float) -> Door:
    """The server's certificate does not hold by this clock: ask the server for its own time, all else being right."""
    host, port = kit.target
    word = "is not yet valid" if error.verify_code == _NOT_YET_VALID else "has ended"
    problem = f"the certificate of {host}:{port} {word} by this machine's clock"
    try:
        said = _ask(kit, host, timeout_s, any_time=True)
    except (OSError, DataError):
        return Door(problem, timely=False)
    return Door(problem, _ahead(said.text), timely=False)


def _takes_old(kit: StartupKit, host: str, timeout_s: float) -> bool:
    try:
        return bool(_ask(kit, host, timeout_s, old=True).text)
    except OSError:  # of which ssl.SSLError is one
        return False


def _ask(kit: StartupKit, host: str, timeout_s: float, any_time: bool = False, old: bool = False) -> _Answer:
    context = ssl.create_default_context(cafile=str(kit.root_path))
    context.load_cert_chain(kit.certificate_path, kit.key_path)
    if any_time:
        context.verify_flags |= _NO_CHECK_TIME
    if old:
        context.options &= ~ssl.OP_NO_TLSv1_2  # which this process's own OPENSSL_CONF may have set
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        _reach(kit, timeout_s) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        secure.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        begins, ends = (_moment(secure.getpeercert(), name) for name in ("notBefore", "notAfter"))
        return _Answer(secure.recv(4096).decode("latin-1"), secure.version() or "", begins, ends)


def _moment(certificate: Mapping[str, Any] | None, name: str) -> datetime | None:
    """A moment that a peer's certificate, as Python's ssl shows it, says."""
    said = (certificate or {}).get(name)
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(said), UTC) if isinstance(said, str) else None


def _ahead(said: str) -> float | None:
    """Seconds that this clock is ahead of the date in an HTTP answer."""
    now = datetime.now(UTC)
    dates = [line.partition(":")[2].strip() for line in said.splitlines() if line.lower().startswith("date:")]
    try:
        return (now - parsedate_to_datetime(dates[0])).total_seconds() if dates else None
    except ValueError:
        return None
