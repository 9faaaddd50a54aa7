"""The hospital's proxy: which one a kit goes through (HTTP CONNECT), with which login, and the way through it.

A kit names its proxy itself. The environment is not asked: FLARE's driver reads no `https_proxy`, a service has another
environment than the shell in which somebody checks it, and what a site's own processes say to each other must never go
through a proxy, whatever a `no_proxy` forgets.
"""

from __future__ import annotations

import base64
import http.client
import socket
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedretina.errors import DataError, SettingsError
from fedretina.kit.startup_kit import StartupKit

DIRECT = "none"
"""What is said instead of a proxy where a kit shall name none any more."""
FLARES_SCHEME = "http"
"""FLARE finds a driver by the scheme of an address. By this one, its default, it speaks websockets over TLS."""
SCHEME = "https"
"""To FLARE the same. A kit that goes through a proxy says this one, for which flare/proxied.py brings its driver, since
a site takes no scheme but FLARE's own."""
COMPONENT = "fedretina.flare.proxied.Proxied"
"""Among a site's components: names the proxy and brings the driver into each process of the site."""
OF_ADMIN = "fedretina_proxy"
"""The same in an admin's kit, among the words of `admin`."""
_ID = "fedretina_proxy"
_EXAMPLE = "http://proxy.hospital.example:3128"


class ProxyError(OSError):
    """A proxy does not let a connection through.

    Attributes:
        mend: What to do about it.
    """

    def __init__(self, found: str, mend: str) -> None:
        super().__init__(found)
        self.mend = mend


@dataclass(frozen=True)
class Proxy:
    """A proxy that lets TLS through unopened.

    Attributes:
        host: Its name or address.
        port: Its port.
        login: File with `user:password` in its first line, for basic authentication; None where none is asked for. It
            is read at each connection, so a new password needs no restart.
    """

    host: str
    port: int
    login: Path | None = None

    @classmethod
    def read(cls, address: str, login: str | Path | None = None) -> Proxy:
        """Read a proxy as a person or a kit writes it.

        Args:
            address: Such as http://proxy.hospital.example:3128.
            login: File of the login.

        Raises:
            SettingsError: It is no such address, or it holds a password.
        """
        found = urlsplit(address)
        if found.username is not None or found.password is not None:
            raise SettingsError(
                "the proxy's address holds a login, which would be shown wherever the kit is: write user:password into "
                "a file that only the service may read, and name it with --proxy-login."
            )
        try:
            port = found.port
        except ValueError:
            port = None
        if found.scheme != "http" or not found.hostname or not port or found.path not in ("", "/") or found.query:
            raise SettingsError(f"{address!r} is no address of a proxy: write {_EXAMPLE}, with its port.")
        return cls(found.hostname, port, None if login is None else Path(login))

    def __str__(self) -> str:
        """Its address, without the login."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def component(self) -> dict[str, Any]:
        """The site's component that names it."""
        return {"id": _ID, "path": COMPONENT, "args": self.words}

    @property
    def words(self) -> dict[str, str | None]:
        """What a kit says of it."""
        return {"address": str(self), "login": None if self.login is None else str(self.login)}

    def headers(self) -> dict[str, str]:
        """What the request to the proxy carries besides: the login, where there is one.

        Raises:
            DataError: Its file cannot be read or holds no login; the message does not hold what is in it.
        """
        if self.login is None:
            return {}
        try:
            words = self.login.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise DataError(f"the proxy's login, {self.login}, cannot be read ({type(error).__name__}).") from error
        if not words or ":" not in words[0]:
            raise DataError(f"{self.login} holds no login: write user:password into its first line.")
        return {"Proxy-Authorization": f"Basic {base64.b64encode(words[0].encode()).decode()}"}

    def open(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """Have the proxy connect to a host's port; what is sent from then on goes there.

        Raises:
            ProxyError: The proxy does not.
            DataError: Its login cannot be read.
            OSError: The proxy itself is not reached.
        """
        headers = self.headers()
        try:
            plain = socket.create_connection((self.host, self.port), timeout_s)
        except OSError as error:
            raise self.unreached(error) from error
        try:
            asked = {"Host": f"{host}:{port}", **headers}
            lines = [f"CONNECT {host}:{port} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.items())]
            plain.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = http.client.HTTPResponse(plain, method="CONNECT")
            answer.begin()
            if answer.status != http.HTTPStatus.OK:
                raise self.refusal(answer.status, host, port)
        except http.client.HTTPException as error:
            plain.close()
            raise ProxyError(f"{self} does not answer like a proxy", "look at its address and port.") from error
        except BaseException:
            plain.close()
            raise
        return plain

    def unreached(self, error: OSError) -> ProxyError:
        """That the proxy itself does not answer."""
        if isinstance(error, socket.gaierror):
            mend = "ask for its DNS entry, or name another with `fedretina kit harden --proxy`."
            return ProxyError(f"this machine knows no address for the proxy {self} ({error.strerror})", mend)
        mend = "let the firewall pass outbound TCP to the proxy, or name another with `fedretina kit harden --proxy`."
        return ProxyError(f"the proxy {self} cannot be reached ({error.strerror or error})", mend)

    def refusal(self, status: int, host: str, port: int | str) -> ProxyError:
        """What a proxy's answer to CONNECT means, in a sentence, if it was not yes."""
        there = f"{host}:{port}"
        if status == http.HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            if self.login is None:
                mend = "write user:password into a file of the service's own, and name it with --proxy-login."
                return ProxyError(f"the proxy {self} asks for a login", mend)
            mend = "only basic authentication is spoken: look at the file of the login, or ask for an exception."
            return ProxyError(f"the proxy {self} refuses the login", mend)
        if status == http.HTTPStatus.FORBIDDEN:
            mend = f"ask the proxy's people to allow CONNECT to {there}, unopened."
            return ProxyError(f"the proxy {self} forbids CONNECT to {there}", mend)
        mend = "ask the project admin whether the server runs, and the proxy's people whether they reach it."
        return ProxyError(f"the proxy {self} does not reach {there} (it answers {status})", mend)

    def login_faults(self) -> list[str]:
        """What is wrong with the login's file: it cannot be read, or others can."""
        try:
            self.headers()
        except DataError as error:
            return [str(error).rstrip(".")]
        shared = self.login is not None and self.login.stat().st_mode & 0o077
        return [f"the proxy's login, {self.login}, can be read by others"] if shared else []


def proxy_of(kit: StartupKit) -> Proxy | None:
    """The proxy that a kit names.

    Raises:
        DataError: A file of the kit cannot be read, or what it says of a proxy is none.
    """
    if kit.role == "server":
        return None
    if kit.role == "admin":
        return stated((kit.config.get("admin") or {}).get(OF_ADMIN))
    parts = kit.local("resources.json").get("components") or []
    return next((stated(part.get("args") or {}) for part in parts if part.get("path") == COMPONENT), None)


def stated(words: Mapping[str, Any] | None) -> Proxy | None:
    """A proxy as a kit says it.

    Raises:
        DataError: It is none.
    """
    if words is None:
        return None
    try:
        return Proxy.read(str(words.get("address", "")), words.get("login"))
    except SettingsError as error:
        raise DataError(f"the kit's proxy: {error}") from error


def of_environment() -> str | None:
    """Host and port of the proxy that this process's environment names for HTTPS; None where it names none."""
    named = urllib.request.getproxies_environment()
    found = urlsplit(named.get("https") or named.get("all") or "")
    return found.netloc.rpartition("@")[2] or None
