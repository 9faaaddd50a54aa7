"""Which addresses the service of a kit may speak with: a drop-in for its systemd unit, and what the units here say."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedretina.errors import DataError, SettingsError
from fedretina.kit.findings import Finding, bad, good, note
from fedretina.kit.proxy import proxy_of
from fedretina.kit.startup_kit import StartupKit
from fedretina.storage import write_text

UNIT_FOLDER = Path("/etc/systemd/system")
UNITS = {"site": "fedretina-site.service", "server": "fedretina-server.service"}
"""The units of provisioning/, by the role of a kit; an admin's kit has none."""

CONF = "addresses.conf"
_WHOSE = re.compile(r"# Written by `fedretina kit addresses (?P<kit>.+?)(?: --unit \S+)?`: ")
"""The first line of a drop-in: it names the kit whose addresses these are."""
HOSTS = "hosts"
LOOPBACK = ("127.0.0.1", "::1")
"""Not all of 127.0.0.0/8: a resolver of the machine itself, such as 127.0.0.53, would carry words out as names."""

_ANY = "any"
_FREE_PORT = 1024
"""Ports below it need a right of their own."""
_WHAT = "addresses"


class Allowed(NamedTuple):
    """What a unit's files say.

    Attributes:
        denies: Whether every address is denied that is not allowed.
        addresses: What is allowed, as the files write it.
    """

    denies: bool
    addresses: tuple[str, ...]

    def lets(self, address: str) -> bool:
        """Whether the unit may speak with an address."""
        if not self.denies:
            return True
        found = ipaddress.ip_address(address)
        # systemd's other words, such as `link-local`, are no way to a server.
        networks = [ipaddress.ip_network(word, strict=False) for word in self.addresses if _is_network(word)]
        loopback = found.is_loopback and "localhost" in self.addresses
        return _ANY in self.addresses or loopback or any(found in network for network in networks)


def drop_in(kit: StartupKit, given: Sequence[str], unit: str, folder: Path) -> dict[Path, str]:
    """Work out the files that let a unit speak with some addresses and no others.

    Args:
        kit: A site's kit or a server's.
        given: Addresses or ranges (192.0.2.0/24); for a server also `any`. By default, for a site, those that the name
            of its server has now, or that of the proxy, where its kit names one.
        unit: The systemd unit that gets the drop-in: a service, or a slice that containers are started in.
        folder: Where the drop-in is to lie.

    Returns:
        Texts by path.

    Raises:
        SettingsError: It is an admin's kit, the unit is of another kind or serves another kit, an address is none, a
            server's kit comes without addresses, a site's with a range or `any`, or the server's name has no address
            here.
        DataError: A file of the kit or the drop-in that is there cannot be read.
    """
    if kit.role not in UNITS:
        raise SettingsError("an admin's kit runs as no service: addresses are for a site's or a server's kit.")
    section = {".service": "Service", ".slice": "Slice"}.get(Path(unit).suffix, "")
    if not section:
        raise SettingsError(f"{unit} is no unit that this can be said of: name a .service or a .slice.")
    other = _whose(folder / CONF)
    if other not in (None, kit.folder):
        raise SettingsError(
            f"{folder / CONF} holds the addresses of another kit, {other}, whose service would be cut off. A second "
            "federation on this machine needs a unit of its own, named with --unit (docs/operations.md). If that kit "
            "is used no more, or has moved here, remove this file first."
        )
    host = first_host(kit)
    if kit.role == "server" and not given:
        raise SettingsError(
            "say which addresses the hospitals and the admins come from, such as 192.0.2.0/24 198.51.100.7; "
            "or `any` where that cannot be known."
        )
    asked = tuple(given) or tuple(addresses_of(host))
    for word in asked:
        if word != _ANY and not _is_network(word):
            raise SettingsError(
                f"{word!r} is no address: write 192.0.2.10, 2001:db8::10 or a range such as 192.0.2.0/24."
            )
    if kit.role == "site" and not all(map(_is_address, asked)):
        raise SettingsError(
            "a site speaks with its server, or its proxy, alone: give single addresses of it, no range."
        )
    allowed = _ANY if _ANY in asked else " ".join((*LOOPBACK, *asked))
    command = _command(kit, unit)
    lines = [
        f"# Written by `{command}`: what this unit may speak with, on any port; nothing else.",
        f"# When an address has changed: the same command again, `systemctl daemon-reload`, and restart {unit}.",
        f"[{section}]",
        "IPAddressDeny=",
        "IPAddressDeny=any",
        "IPAddressAllow=",
        f"IPAddressAllow={allowed}",
    ]
    if kit.role == "server" and kit.target[1] < _FREE_PORT and section == "Service":
        right = "CAP_NET_BIND_SERVICE"
        lines += [f"# Port {kit.target[1]}: no other right of root's.", f"AmbientCapabilities={right}"]
        lines.append(f"CapabilityBoundingSet={right}")
    files = {}
    if kit.role == "site" and section == "Service" and not _is_address(host):
        names = [(one, "localhost") for one in LOOPBACK] + [(one, host) for one in asked]
        files[folder / HOSTS] = "".join(f"{address} {name}\n" for address, name in names)
        lines.append(f"BindReadOnlyPaths={folder / HOSTS}:/etc/hosts")
    return {**files, folder / CONF: "\n".join(lines) + "\n"}


def first_host(kit: StartupKit) -> str:
    """Whom a kit's connections go to first: its proxy, or the server.

    Raises:
        DataError: A file of the kit cannot be read.
    """
    proxy = proxy_of(kit)
    return kit.target[0] if proxy is None else proxy.host


def write(files: dict[Path, str]) -> None:
    """Write a drop-in; everybody may read it, as systemd's own files.

    Raises:
        DataError: A folder cannot be made.
        StateError: A file cannot be written.
    """
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(0o755)
        except OSError as error:
            raise DataError(
                f"{path.parent} cannot be made ({error.strerror}): run it as root, or give --out."
            ) from error
        write_text(path, text, mode=0o644)


def addresses_of(host: str) -> list[str]:
    """The addresses that a name, or an address itself, has on this machine now, each once.

    Raises:
        SettingsError: It has none.
    """
    if _is_address(host):
        return [host]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(
            f"{host} has no address on this machine ({error}): give its address yourself, after the kit."
        ) from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def unit_of(kit: StartupKit) -> str:
    """The unit that serves a kit on this machine: that of provisioning/, unless the drop-in of another names the kit.

    Raises:
        DataError: A drop-in cannot be read.
    """
    usual = UNITS.get(kit.role, "")
    whose = {path.parent.name.removesuffix(".d"): _whose(path) for path in UNIT_FOLDER.glob(f"*.d/{CONF}")}
    own = sorted(unit for unit, folder in whose.items() if folder == kit.folder)
    return usual if usual in own or not own else own[0]


def unit_says(kit: StartupKit, names: Sequence[str]) -> dict[str, list[str]] | None:
    """Words of some settings in the unit that serves a kit, its drop-ins read after it.

    Args:
        kit: The kit.
        names: The settings, such as IPAddressAllow.

    Returns:
        The words of each, in their order; None where no unit on this machine serves this kit.

    Raises:
        DataError: A file of the unit cannot be read.
    """
    unit = UNIT_FOLDER / unit_of(kit)
    own = [unit] if unit.is_file() else []
    if not (own or unit.suffix == ".slice") or _whose(Path(f"{unit}.d") / CONF) not in (None, kit.folder):
        return None  # a slice needs no file but its drop-in
    lists: dict[str, list[str]] = {name: [] for name in names}
    for path in [*own, *sorted(Path(f"{unit}.d").glob("*.conf"))]:
        for line in _read(path).splitlines():
            name, _, value = line.partition("=")
            if name.strip() in lists:  # an empty value takes back all that was said before
                lists[name.strip()] = [*lists[name.strip()], *value.split()] if value.strip() else []
    return lists


def unit_allows(kit: StartupKit) -> Allowed | None:
    """What the unit of a kit allows; None where no unit on this machine serves this kit.

    Raises:
        DataError: A file of the unit cannot be read.
    """
    lists = unit_says(kit, ("IPAddressDeny", "IPAddressAllow"))
    return None if lists is None else Allowed(_ANY in lists["IPAddressDeny"], tuple(lists["IPAddressAllow"]))


def unit_finding(kit: StartupKit) -> Finding:
    """Whether the service of a kit is held to the addresses that it needs, as its unit's files say.

    Raises:
        DataError: A file of the unit cannot be read.
    """
    allowed, unit = unit_allows(kit), unit_of(kit)
    if allowed is None:
        other = _whose(UNIT_FOLDER / f"{unit}.d" / CONF)
        none = f"no {unit} on this machine"
        if other not in (None, kit.folder):
            none = f"{unit} serves another kit, {other}, and no unit of this machine serves this one"
        return note(_WHAT, f"{none}, so what the process may reach is not looked at")
    if not allowed.denies:
        old = f"{unit} lets the service speak with every address"
        return bad(_WHAT, old, f"install provisioning/{UNITS[kit.role]} of this version; {_mend(kit)}")
    outside = [word for word in allowed.addresses if word not in (*LOOPBACK, "localhost")]
    if not outside:
        return bad(_WHAT, "the service may speak with nothing outside this machine", _mend(kit))
    return good(_WHAT, f"the service may speak with {', '.join(outside)} and this machine")


def moved_finding(kit: StartupKit) -> Finding | None:
    """The fault that a site's service may not speak with any address of its server, or proxy; None when all is well.

    Raises:
        DataError: A file of the unit cannot be read.
    """
    allowed = unit_allows(kit)
    host = first_host(kit)
    try:
        now = addresses_of(host)
    except SettingsError:
        return None  # the knock at the server's door says that the name is not known
    if allowed is None or any(allowed.lets(address) for address in now):
        return None
    return bad(
        "server's address" if proxy_of(kit) is None else "proxy's address",
        f"{host} has {', '.join(now)} now, with which the service may not speak",
        _mend(kit),
    )


def _mend(kit: StartupKit) -> str:
    given = " ADDRESS ..." if kit.role == "server" else ""
    command = f"{_command(kit, unit_of(kit))}{given}"
    return f"as root: `{command}`, then `systemctl daemon-reload` and restart the service."


def _command(kit: StartupKit, unit: str) -> str:
    return f"fedretina kit addresses {kit.folder}{'' if unit == UNITS[kit.role] else f' --unit {unit}'}"


def _whose(conf: Path) -> Path | None:
    """The folder of the kit that a drop-in says it was written for; None where it says none, or is not there."""
    said = _WHOSE.match(_read(conf)) if conf.is_file() else None
    return None if said is None else Path(said["kit"])


def _read(path: Path) -> str:
    """A file of systemd's.

    Raises:
        DataError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): let everybody read it.") from error


def _is_network(word: str) -> bool:
    try:
        ipaddress.ip_network(word, strict=False)
    except ValueError:
        return False
    return True


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True
