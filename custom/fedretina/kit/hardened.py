"""What the files of a hardened kit say: one place, written by `kit harden` and asked by `kit check`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedretina.kit.job_folder import ALLOWED_CLASSES, FILTER, GPU_MEMORY, GPUS
from fedretina.kit.proxy import COMPONENT, FLARES_SCHEME, OF_ADMIN, SCHEME, Proxy
from fedretina.settings.site import APPROVAL, PROPERTY, REQUIRED, SERVER_PROPERTY

SITE_FILE = "site.yaml"
LISTENS = {"loopback": "localhost", "all": "0.0.0.0"}
"""Where a server listens, as its kit states it; FLARE's kits state neither, and listen on every interface."""

TLS_FILE = "openssl.cnf"
TLS_CONFIG = """\
# Written by `fedretina kit harden`. Whoever starts the kit names this file as OPENSSL_CONF, as the systemd units and
# the container do: TLS 1.3 only. FLARE asks for 1.2 or more, in its own code, and has no setting for it.
openssl_conf = fedretina

[fedretina]
ssl_conf = fedretina_ssl

[fedretina_ssl]
system_default = fedretina_tls

[fedretina_tls]
# Not MinProtocol: FLARE sets the smallest version itself and would take it back.
Protocol = -TLSv1.2
"""
"""OpenSSL's own configuration, read by the processes of a kit: no version of TLS before 1.3, at either end."""

_NEVER = {
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
    "configure_job_log": "none",
    "report_env": "none",
}

PERMISSIONS: Mapping[str, Mapping[str, str]] = {
    "project_admin": {
        "submit_job": "any",
        "clone_job": "any",
        "manage_job": "any",
        "download_job": "any",
        "view": "any",
        "operate": "any",
        **_NEVER,
    },
    "org_admin": {
        "submit_job": "none",
        "clone_job": "none",
        "manage_job": "none",
        "download_job": "none",
        "view": "any",
        "operate": "o:site",
        **_NEVER,
    },
    "lead": {
        "submit_job": "any",
        "clone_job": "n:submitter",
        "manage_job": "n:submitter",
        "download_job": "n:submitter",
        "view": "any",
        "operate": "none",
        **_NEVER,
    },
    "member": {"view": "any", **_NEVER},
}
"""Rights by role, in the words of FLARE's authorization.json. Nobody brings code or reads a site's files; a right that
is not named is denied. `report_env` would tell the server where a site's folders are."""

ONE_MACHINE: Mapping[str, Mapping[str, Any]] = {
    role: {"id": "fedretina_one_machine", "path": path, "args": {}}
    for role, path in (
        ("server", "fedretina.flare.one_machine.OneMachine"),
        ("site", "fedretina.flare.one_machine_site.OneMachineSite"),
    )
}
"""By role, the component that sees to it that a site is one machine, or says at the site that it is not."""
PAGE: Mapping[str, Any] = {"id": "fedretina_page", "path": "fedretina.flare.status_page.StatusPage", "args": {}}
"""Among the components of a site or a server: writes its page every minute."""
AUDIT: Mapping[str, Any] = {"id": "fedretina_audit", "path": "fedretina.flare.audit_events.AuditEvents", "args": {}}
"""The same: writes sign-ins and the lives of jobs into the kit's audit log."""

CARDS: Mapping[str, Mapping[str, Any]] = {
    part: {"id": part, "path": f"nvflare.app_common.{path}", "args": {}}
    for part, path in (
        ("resource_manager", "resource_managers.gpu_resource_manager.GPUResourceManager"),
        ("resource_consumer", "resource_consumers.gpu_resource_consumer.GPUResourceConsumer"),
    )
}
"""FLARE's own, among a site's components: which GPU a job that asks is given, and that it sees this one alone."""

_STREAMERS = ("SiteLogStreamer", "JobLogStreamer", "JobLogReceiver")
DEPLOYER = {"id": "app_deployer", "path": "fedretina.flare.job_door.JobDeployer", "args": {}}
"""Among a site's components: takes jobs in, and leaves the site's processes no format of configuration but JSON."""
VALIDATOR = {"path": "fedretina.flare.job_door.JobValidator", "args": {}}
"""The same at a server, as its `app_validator`."""
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")


def authorization() -> dict[str, Any]:
    """The rights of every role."""
    return {"format_version": "1.0", "permissions": {role: dict(rights) for role, rights in PERMISSIONS.items()}}


def startup_config(config: Mapping[str, Any], bind: str | None, scheme: str | None = None) -> dict[str, Any]:
    """The file in `startup` of a server or a site: signed jobs only, where a server listens, how a site speaks.

    Args:
        config: What it says now.
        bind: "loopback" or "all" for a server; None leaves the address as it is.
        scheme: How a site speaks with the server: through a proxy or not; None leaves it as it is.
    """
    changed = {**config, "require_signed_jobs": True}
    if bind is None and scheme is None:
        return changed
    servers = [dict(entry) for entry in config["servers"]]
    service = dict(servers[0]["service"])
    if scheme is not None:
        service["scheme"] = scheme
    if bind is not None:
        _, _, port = str(service["target"]).partition(":")
        # FLARE 2.9 listens on loopback when the name is a loopback name, and on every interface otherwise.
        host = LISTENS[bind]
        service["target"] = f"{host}:{port}"
    changed["servers"] = [{**servers[0], "service": service}, *servers[1:]]
    return changed


def admin_config(config: Mapping[str, Any], proxy: Proxy | None) -> dict[str, Any]:
    """The file in `startup` of an admin, with the proxy that it goes through, or with none."""
    admin = {name: value for name, value in (config.get("admin") or {}).items() if name != OF_ADMIN}
    admin["scheme"] = FLARES_SCHEME if proxy is None else SCHEME
    return {**config, "admin": admin if proxy is None else {**admin, OF_ADMIN: proxy.words}}


def site_resources(
    resources: Mapping[str, Any], proxy: Proxy | None = None, cards: tuple[int, float] | None = None
) -> dict[str, Any]:
    """A site's resources.json: jobs in JSON alone, the allow-list enforced, no log leaves, a second machine told.

    Args:
        resources: What it says now.
        proxy: The proxy that the site goes through, if there is one.
        cards: How many GPUs jobs may ask for, and how much memory of each, in GiB; None keeps what it says.
    """
    components = _without_ours([entry for entry in _without_streamers(resources) if entry.get("id") != DEPLOYER["id"]])
    components = [component for component in components if component.get("path") != COMPONENT]
    components += [] if proxy is None else [proxy.component]
    if cards is not None:
        components = _with_cards(components, *cards)
    return {
        **resources,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": sorted(ALLOWED_CLASSES),
        "allow_log_streaming": False,
        "components": [*_with_one_machine(components, "site"), dict(PAGE), dict(AUDIT), dict(DEPLOYER)],
    }


def server_resources(resources: Mapping[str, Any], storage: Path) -> dict[str, Any]:
    """A server's resources.json: jobs in JSON alone, the allow-list enforced, no log received, lasting storage.

    It holds the guard against a second machine with a site's kit, too.
    """
    components = [*_with_one_machine(_without_ours(_without_streamers(resources)), "server"), dict(PAGE), dict(AUDIT)]
    for component in components:
        if component.get("id") == "job_manager":
            component["args"] = {**component.get("args", {}), "uri_root": str(storage / "jobs")}
    persistor = dict(resources.get("snapshot_persistor") or {})
    if persistor:
        args = dict(persistor.get("args") or {})
        inner = dict(args.get("storage") or {})
        inner["args"] = {**inner.get("args", {}), "root_dir": str(storage / "snapshots")}
        persistor["args"] = {**args, "storage": inner}
    return {
        **resources,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": sorted(ALLOWED_CLASSES),
        "components": components,
        "app_validator": dict(VALIDATOR),
        **({"snapshot_persistor": persistor} if persistor else {}),
    }


def site_privacy(privacy: Mapping[str, Any], site_file: str | None, approval: bool = False) -> dict[str, Any]:
    """A site's privacy.json: the site's own settings and our filter, the last one, in every scope.

    Args:
        privacy: What it says now; empty when there is none.
        site_file: The site file for every scope; None keeps what each scope says, else `local/site.yaml`.
        approval: Require the hospital's approval of each run, whatever the site file says; where it is required
            already, it stays so.
    """
    changed = _with_scopes(privacy)
    for scope in changed["scopes"]:
        properties = scope["properties"]
        own = properties.get(PROPERTY)
        required = approval or (isinstance(own, Mapping) and own.get(APPROVAL) == REQUIRED)
        if site_file is not None or PROPERTY not in properties:
            own = {"site_file": site_file or SITE_FILE}
        properties[PROPERTY] = {**own, APPROVAL: REQUIRED} if required and isinstance(own, Mapping) else own
        for chain, direction in (("task_data_filters", "order"), ("task_result_filters", "answer")):
            others = [entry for entry in scope.get(chain) or [] if entry.get("path") != FILTER]
            scope[chain] = [*others, scope_filter(direction)]
    return changed


def server_privacy(privacy: Mapping[str, Any], storage: Path) -> dict[str, Any]:
    """A server's privacy.json: where the state of runs lies."""
    changed = _with_scopes(privacy)
    for scope in changed["scopes"]:
        scope["properties"].setdefault(SERVER_PROPERTY, {"state_root": str(storage / "runs")})
    return changed


def scope_filter(direction: str) -> dict[str, Any]:
    """Our filter as it stands in a scope."""
    return {"path": FILTER, "args": {"direction": direction, "scope": True}}


def storage_folders(resources: Mapping[str, Any]) -> dict[str, str]:
    """Where a server's resources.json keeps jobs and snapshots."""
    found = {}
    for component in resources.get("components") or []:
        if component.get("id") == "job_manager":
            found["jobs"] = str((component.get("args") or {}).get("uri_root", ""))
    inner = ((resources.get("snapshot_persistor") or {}).get("args") or {}).get("storage") or {}
    if inner:
        found["snapshots"] = str((inner.get("args") or {}).get("root_dir", ""))
    return found


def is_temporary(folder: Path) -> bool:
    """Whether a folder may be emptied by a restart."""
    return any(folder.is_relative_to(root) for root in _TEMPORARY)


def streams_logs(component: Mapping[str, Any]) -> bool:
    """Whether a component sends or takes log files."""
    return any(name in str(component.get("path", "")) for name in _STREAMERS)


def keeps_one_machine(component: Mapping[str, Any], role: str) -> bool:
    """Whether a component is the one that a server or a site needs against a second machine; its args may differ."""
    return {**component, "args": {}} == ONE_MACHINE[role]


def cards_offered(resources: Mapping[str, Any]) -> tuple[int, float]:
    """How many GPUs a site's resources.json lets jobs ask for, and how much memory of each, in GiB."""
    for component in resources.get("components") or []:
        if component.get("path") == CARDS["resource_manager"]["path"]:
            args = component.get("args") or {}
            return int(args.get(GPUS, 0)), float(args.get(GPU_MEMORY, 0))
    return 0, 0.0


def _with_scopes(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a privacy.json in which there is a scope, each has properties, and one is the default."""
    found = privacy.get("scopes") or [{"name": "fedretina"}]
    scopes = [{**scope, "properties": dict(scope.get("properties") or {})} for scope in found]
    return {**privacy, "scopes": scopes, "default_scope": privacy.get("default_scope") or scopes[0]["name"]}


def _with_cards(components: list[dict[str, Any]], count: int, memory: float) -> list[dict[str, Any]]:
    had = {component.get("id"): component.get("args") or {} for component in components}
    manager, consumer = CARDS["resource_manager"], CARDS["resource_consumer"]
    # Not held against the machine: a job's process builds the manager too, sees its one card, and would refuse a kit
    # that offers two (FLARE 2.9.0). `site check` compares, and the consumer looks at the card before a job gets it.
    args = {**had.get(manager["id"], {}), GPUS: count, GPU_MEMORY: memory, "ignore_host": True}
    others = [component for component in components if component.get("id") not in CARDS]
    return [{**manager, "args": args}, dict(consumer), *others]


def _with_one_machine(components: list[dict[str, Any]], role: str) -> list[dict[str, Any]]:
    if any(keeps_one_machine(component, role) for component in components):
        return components
    return [*components, dict(ONE_MACHINE[role])]


def _without_ours(components: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ours = {PAGE["path"], AUDIT["path"]}
    return [component for component in components if component.get("path") not in ours]


def _without_streamers(resources: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dict(component) for component in resources.get("components") or [] if not streams_logs(component)]
