"""The check of a hardened kit: each rule is looked at in the kit's files as FLARE would read them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedretina.errors import DataError
from fedretina.kit import hardened
from fedretina.kit.addresses import unit_finding
from fedretina.kit.authority import state_beside, state_finding
from fedretina.kit.findings import Finding, bad, good, judged, note
from fedretina.kit.harden import modes
from fedretina.kit.job_folder import ALLOWED_CLASSES
from fedretina.kit.proxy import SCHEME, proxy_of
from fedretina.kit.startup_kit import Certificate, StartupKit, belongs_to_key, is_issued_by, read_certificate
from fedretina.plurals import counted

WARN_DAYS = 30
"""Renewal takes a hospital's IT some days, so a certificate that ends sooner is a fault."""

_CLOCK = "set the clock, and keep it with NTP; a clock that is right needs another certificate from the project admin."

_PARSERS = ("pyhocon", "omegaconf")
"""Packages with which FLARE reads HOCON and YAML as configuration."""

HARDEN = "run `fedretina kit harden` on the kit again"
"""With this begins the mend of all that hardening a kit anew puts right."""
_HARDEN = f"{HARDEN} and read what it changes."
_LEAVES = frozenset({"allow_log_streaming", "require_signed_jobs"})
# FLARE sends a client's other top-level settings to the server when it registers.
_STAYS = frozenset(
    {
        "format_version",
        "client",
        "servers",
        "components",
        "handlers",
        "class_allow_list",
        "class_list_enforcement_mode",
        "snapshot_persistor",
        "admin",
        "relay_config",
        "overseer_agent",
    }
)


def check_kit(kit: StartupKit) -> list[Finding]:
    """Look at certificates and file rights, and, unless it is an admin's kit, at every rule of a hardened kit.

    Raises:
        DataError: A file of the kit cannot be read.
    """
    findings = [note("kit", f"{kit.role} {kit.name} of {kit.certificate.organisation or 'no organisation'}")]
    findings += [_certificate(kit), _root(kit), _key(kit), _modes(kit)]
    state = state_beside(kit.folder)
    findings += [state_finding(state)] if state is not None else []
    if kit.role == "admin":
        role = kit.certificate.role or "none"
        return [*findings, note("role", role), _proxy(kit)]
    resources = kit.local("resources.json")
    findings += [
        _mutual_tls(kit),
        _tls_version(kit),
        _signed_jobs(kit),
        _authorization(kit),
        _allow_list(resources),
        _json_only(kit, resources),
        _log_streaming(kit, resources),
        _one_machine(kit, resources),
        *_told(resources),
        _own_components(resources),
        _custom_code(kit),
        unit_finding(kit),
    ]
    if kit.role == "server":
        return [*findings, _bind(kit), _storage(resources)]
    return [*findings, _tells_server(kit, resources), _scopes(kit), _cards(resources), _proxy(kit)]


def _certificate(kit: StartupKit) -> Finding:
    left = kit.certificate.days_left()
    text = f"ends {kit.certificate.ends:%Y-%m-%d}, {left:.0f} days left"
    if not is_issued_by(kit.certificate_path, kit.root_path):
        return bad("certificate", "not issued by the kit's rootCA.pem", "take both files from the same kit.")
    if early := _not_yet(kit.certificate):
        return bad("certificate", early, _CLOCK)
    if left < WARN_DAYS:
        return bad("certificate", text, "renew it: provisioning/README.md, Renewal.")
    return good("certificate", text)


def _root(kit: StartupKit) -> Finding:
    root = read_certificate(kit.root_path)
    text = f"{root.name} ends {root.ends:%Y-%m-%d}, {root.days_left():.0f} days left"
    if early := _not_yet(root):
        return bad("authority", early, _CLOCK)
    if root.days_left() < WARN_DAYS:
        return bad("authority", text, "the consortium must provision everyone anew: provisioning/README.md, Renewal.")
    return good("authority", text)


def _not_yet(certificate: Certificate) -> str:
    """That a certificate has not begun, in words; empty when it has."""
    now = datetime.now(UTC)
    if now >= certificate.begins:
        return ""
    return (
        f"begins {certificate.begins:%Y-%m-%d %H:%M} UTC, and this machine's clock says {now:%Y-%m-%d %H:%M}: the "
        "clock is behind, or the certificate is for later"
    )


def _key(kit: StartupKit) -> Finding:
    if belongs_to_key(kit.certificate_path, kit.key_path):
        return good("private key", "belongs to the certificate")
    return bad("private key", "does not belong to the certificate", "take both files from the same kit.")


def _modes(kit: StartupKit) -> Finding:
    open_files = [str(path.relative_to(kit.folder)) or "." for path, _ in modes(kit) if path.stat().st_mode & 0o077]
    owners = {path.stat().st_uid for path, _ in modes(kit)}
    faults = [f"{len(open_files)} readable by others, such as {open_files[0]}"] if open_files else []
    if owners - {os.getuid()} and os.getuid() != 0:
        faults.append("some belong to another user than the one who asks")
    return judged("file rights", faults, "the owner's alone", _HARDEN)


def _mutual_tls(kit: StartupKit) -> Finding:
    holder = kit.service if kit.role == "server" else kit.config.get("client") or {}
    found = str(holder.get("connection_security", "mtls")).lower()
    return judged(
        "connection", [] if found == "mtls" else [found], "mutual TLS", "set connection_security to mtls in startup/."
    )


def _tls_version(kit: StartupKit) -> Finding:
    path = kit.folder / "local" / hardened.TLS_FILE
    there = path.is_file() and path.read_text(encoding="utf-8") == hardened.TLS_CONFIG
    faults = [] if there else [f"local/{hardened.TLS_FILE} does not say 1.3, so FLARE takes 1.2 as well"]
    return judged("TLS", faults, f"1.3, where the kit is started with OPENSSL_CONF={path}", _HARDEN)


def _signed_jobs(kit: StartupKit) -> Finding:
    faults = [] if kit.config.get("require_signed_jobs") is True else ["not demanded by the kit's file in startup/"]
    return judged("signed jobs", faults, "demanded", _HARDEN)


def _authorization(kit: StartupKit) -> Finding:
    if not (kit.folder / "local" / "authorization.json").exists():
        return bad("rights", "FLARE's default, under which a lead may bring code", _HARDEN)
    permissions = kit.local("authorization.json").get("permissions") or {}
    faults = []
    for role, rights in permissions.items():
        reviewed = hardened.PERMISSIONS.get(role, {})
        if rights == "none":
            continue
        if not isinstance(rights, Mapping):
            faults.append(f"{role} may do {rights!r}")
            continue
        faults += [
            f"{role} has {right}: {who}"
            for right, who in rights.items()
            if who != "none" and reviewed.get(right) != "any" and who != reviewed.get(right)
        ]
    return judged("rights", faults, "no code in jobs, no shell, for anybody", _HARDEN)


def _allow_list(resources: Mapping[str, Any]) -> Finding:
    listed = resources.get("class_allow_list")
    faults = []
    if resources.get("class_list_enforcement_mode") != "enforce":
        faults.append("not enforced")
    if not isinstance(listed, list):
        faults.append("none, so FLARE's own holds, which lacks this package")
        listed = []
    extra = sorted(set(map(str, listed)) - set(ALLOWED_CLASSES))
    missing = sorted(set(ALLOWED_CLASSES) - set(map(str, listed)))
    if extra:
        faults.append(f"{counted(len(extra), 'class', 'classes')} besides those of our jobs, such as {extra[0]}")
    if missing and isinstance(listed, list) and listed:
        some = counted(len(missing), "class of this version is", "classes of this version are")
        faults.append(f"{some} missing, such as {missing[0]}")
    return judged("allow-list", faults, f"the {len(ALLOWED_CLASSES)} classes of this version's jobs", _HARDEN)


def _json_only(kit: StartupKit, resources: Mapping[str, Any]) -> Finding:
    """Whether another format than JSON can be reached: it can unless the kit's component stands where FLARE looks.

    A loader counts as reachable where its package could be imported by the kit's processes, now or after the next
    installation, and nothing takes it away; so only the component counts, and what is installed is told beside it.
    """
    if kit.role == "server":
        faults = [] if resources.get("app_validator") == hardened.VALIDATOR else ["FLARE's own formats are open"]
        elsewhere = [name for name, content in _resource_files(kit, resources) if "app_validator" in content][1:]
    else:
        found = [
            (name, entry)
            for name, content in _resource_files(kit, resources)
            for entry in content.get("components") or []
            if entry.get("id") == hardened.DEPLOYER["id"]
        ]
        faults = [] if ("resources.json", hardened.DEPLOYER) in found else ["FLARE's own formats are open"]
        elsewhere = [name for name, _ in found if name != "resources.json"]
    faults += [f"{name} takes its place" for name in elsewhere]
    here = [name for name in _PARSERS if importlib.util.find_spec(name)]
    also = f"; {' and '.join(here)} could be left out of this environment" if here else ""
    return judged("configuration formats", faults, f"JSON alone{also}", _HARDEN)


def _log_streaming(kit: StartupKit, resources: Mapping[str, Any]) -> Finding:
    faults = [
        f"{component.get('path')} in {name}"
        for name, content in _resource_files(kit, resources)
        for component in content.get("components") or []
        if hardened.streams_logs(component)
    ]
    if kit.role == "site" and resources.get("allow_log_streaming") is not False:
        faults.append("allow_log_streaming is not false")
    return judged("log streaming", faults, "off", _HARDEN)


def _one_machine(kit: StartupKit, resources: Mapping[str, Any]) -> Finding:
    found = any(hardened.keeps_one_machine(component, kit.role) for component in resources.get("components") or [])
    text = "guarded against" if kit.role == "server" else "told of in the log"
    return judged("second machine", [] if found else ["not noticed"], text, _HARDEN)


def _told(resources: Mapping[str, Any]) -> Iterator[Finding]:
    """Page and audit log hold nothing back and let nothing go, so a kit without them is told, not refused."""
    paths = {part.get("path") for part in resources.get("components") or []}
    for what, part, fine in (
        ("page", hardened.PAGE, "written every minute while the service runs"),
        ("audit log", hardened.AUDIT, "sign-ins and jobs are written down"),
    ):
        yield note(what, fine if part["path"] in paths else f"none: {_HARDEN}")


def _own_components(resources: Mapping[str, Any]) -> Finding:
    """Whether this version has what the kit names of it, without which the end would not start."""
    paths = {str(part.get("path", "")) for part in resources.get("components") or []}
    ours = sorted(path for path in paths if path.startswith("fedretina."))
    faults = [path for path in ours if not _is_there(path.rpartition(".")[0])]
    some = counted(
        len(faults), "component that this version does not have", "components that this version does not have"
    )
    mend = "use the version that hardened the kit, or take it out of local/resources.json."
    return judged("components", [f"{some}: {', '.join(faults)}"] if faults else [], "this version's own", mend)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _cards(resources: Mapping[str, Any]) -> Finding:
    count, memory = hardened.cards_offered(resources)
    if not count:
        return note("GPUs for jobs", "none may be asked for: a job sees what the machine shows it")
    return note("GPUs for jobs", f"{count} of {memory:g} GiB; a job that asks for one sees that one alone")


def _resource_files(kit: StartupKit, resources: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "resources.json", resources
    for path in sorted((kit.folder / "local").glob("*resources.json")):
        if path.name != "resources.json":
            yield path.name, kit.local(path.name)


def _custom_code(kit: StartupKit) -> Finding:
    found = [name for name in ("local/custom", "startup/custom") if (kit.folder / name).exists()]
    mend = "remove the folder: FLARE would import what lies in it."
    return judged("code beside the package", found, "none", mend)


def _bind(kit: StartupKit) -> Finding:
    host, port = kit.target
    if host == hardened.LISTENS["loopback"]:
        return good("listens on", f"loopback, port {port}")
    if host == hardened.LISTENS["all"]:
        return good("listens on", f"every interface of this machine, port {port}: the firewall admits the sites")
    return bad("listens on", f"not stated ({host})", "say it: `fedretina kit harden --bind all`, or `--bind loopback`.")


def _storage(resources: Mapping[str, Any]) -> Finding:
    folders = hardened.storage_folders(resources)
    faults = [
        f"{what} in {folder or 'no folder'}"
        for what, folder in folders.items()
        if not Path(folder).is_absolute() or hardened.is_temporary(Path(folder))
    ]
    shared = [folder for folder in folders.values() if _readable_by_others(Path(folder).parent)]
    faults += [f"{Path(shared[0]).parent} is readable by others"] if shared and not faults else []
    return judged("storage", faults, ", ".join(sorted(folders.values())), f"{_HARDEN[:-1]}, or chmod 700.")


def _readable_by_others(folder: Path) -> bool:
    return folder.exists() and bool(folder.stat().st_mode & 0o077)


def _proxy(kit: StartupKit) -> Finding:
    """Which proxy the kit goes through, and whether its own processes speak past it, as they do by FLARE's `tcp`."""
    try:
        proxy = proxy_of(kit)
    except DataError as error:
        return bad("proxy", str(error), _HARDEN)
    if (proxy is not None) is not (kit.scheme == SCHEME):
        there = "startup/ says nothing of the proxy" if proxy is not None else "startup/ says one that local/ does not"
        return bad("proxy", there, "run `fedretina kit harden` with --proxy, or with `--proxy none`.")
    if proxy is None:
        return note("proxy", "none: it goes straight to the server")
    inner = (kit.local("comm_config.json").get("internal") or {}).get("scheme", "tcp")
    faults = [] if inner == "tcp" else [f"comm_config.json lets this machine's own processes speak {inner!r}"]
    login = "without a login" if proxy.login is None else f"with the login in {proxy.login}"
    text = f"{proxy}, {login}; this machine's own processes speak past it"
    mend = "chmod 600 the login's file, which must be the service's; take `internal` out of comm_config.json."
    return judged("proxy", [*proxy.login_faults(), *faults], text, mend)


def _tells_server(kit: StartupKit, resources: Mapping[str, Any]) -> Finding:
    told_keys = sorted((set(kit.config) | set(resources)) - _STAYS - _LEAVES)
    mend = "move them into the site file: FLARE sends them to the server when the site registers."
    return judged("settings that leave", told_keys, "none of this site's", mend)


def _scopes(kit: StartupKit) -> Finding:
    privacy = kit.local("privacy.json") if (kit.folder / "local" / "privacy.json").exists() else {}
    scopes = privacy.get("scopes") or []
    faults = [] if scopes else ["no privacy.json, so a job's own filter is all there is"]
    for scope in scopes:
        for chain, direction in (("task_data_filters", "order"), ("task_result_filters", "answer")):
            entries = scope.get(chain) or []
            if not entries or entries[-1] != hardened.scope_filter(direction):
                faults.append(f"scope {scope.get('name')!r} lacks our filter as the last of {chain}")
    if scopes and privacy.get("default_scope") not in {scope.get("name") for scope in scopes}:
        faults.append("no default scope")
    names = ", ".join(repr(scope.get("name")) for scope in scopes)
    return judged("site policy", faults, f"our filter is the last of every scope: {names}", _HARDEN)
