"""Turning a startup kit into a hardened one: the changes are worked out first, so that they can be read before."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.errors import DataError, SettingsError
from fedretina.kit import hardened
from fedretina.kit.authority import make_private, state_beside
from fedretina.kit.proxy import DIRECT, FLARES_SCHEME, SCHEME, Proxy, proxy_of
from fedretina.kit.startup_kit import StartupKit
from fedretina.settings.site import PROPERTY
from fedretina.storage import write_text

SITE_TEMPLATE = """\
# This hospital's own settings; none of them leaves this machine. Every one: docs/settings.md, "A site's own settings".
# Relative paths start at this file's folder. Check with `fedretina site check KIT`.
#
# data:
#   manifest: /srv/fedretina/manifest.csv    # columns file, label, patient, split (train, val, test)
#   images: /srv/fedretina/images            # what `file` is relative to
#   scheme: icdr5                            # or icdr5_ungradable, normal_3stages, or grades of one's own
#   cache: /srv/fedretina/cache
# state_root: /srv/fedretina/runs
# trainer: child                             # out of memory then costs one answer, not the whole job
# approval: required                         # no run begins before `fedretina site approve` said yes to its plan
"""


class Change(NamedTuple):
    """One file as it is and as it should be.

    Attributes:
        path: The file.
        before: Its text now; empty when there is none.
        after: Its text once hardened.
    """

    path: Path
    before: str
    after: str

    def diff(self) -> str:
        """The change as a unified diff."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), "now", self.path.name, n=2
        )
        return "".join(lines)


def changes(
    kit: StartupKit,
    bind: str | None = None,
    storage: Path | None = None,
    site_file: Path | None = None,
    approval: bool = False,
    proxy: str | None = None,
    login: Path | None = None,
    cards: tuple[int, float] | None = None,
) -> list[Change]:
    """Work out what hardening changes in a kit; a kit that is hardened needs none.

    Args:
        kit: The kit.
        bind: For a server: "loopback" or "all" interfaces.
        storage: For a server: folder of jobs, snapshots and runs; by default, or when FLARE's temporary one is set,
            `storage` in the kit.
        site_file: For a site: its site file; by default what the kit says, else `local/site.yaml`.
        approval: For a site: require its hospital's approval of each run, whatever its site file says.
        proxy: For a site or an admin: address of the proxy to go through, or "none"; by default what the kit says.
        login: File with the proxy's login; by default, and without a proxy, what the kit says.
        cards: For a site: see `hardened.site_resources`.

    Raises:
        DataError: A file of the kit cannot be read, the storage would lie in a temporary folder, or the proxy's login
            cannot be read or others can read it.
        SettingsError: An option does not belong to the kit, or a needed one is missing.
    """
    _check_options(kit, bind, storage, site_file, approval, cards)
    through = _proxy(kit, proxy, login)
    scheme = None if proxy is None else FLARES_SCHEME if through is None else SCHEME
    local = kit.folder / "local"
    wanted: dict[Path, Mapping[str, Any] | str] = {}
    if kit.role == "admin":
        if proxy is not None:
            wanted[kit.config_path] = hardened.admin_config(kit.config, through)
        return _changed(wanted)
    wanted[kit.config_path] = hardened.startup_config(kit.config, bind, scheme)
    wanted[local / "authorization.json"] = hardened.authorization()
    wanted[local / hardened.TLS_FILE] = hardened.TLS_CONFIG
    if kit.role == "server":
        folder = _storage(kit, storage)
        wanted[local / "resources.json"] = hardened.server_resources(kit.local("resources.json"), folder)
        wanted[local / "privacy.json"] = hardened.server_privacy(kit.local("privacy.json"), folder)
    else:
        resources = hardened.site_resources(kit.local("resources.json"), through, cards)
        wanted[local / "resources.json"] = resources
        chosen = None if site_file is None else str(site_file.resolve())
        privacy = hardened.site_privacy(kit.local("privacy.json"), chosen, approval)
        wanted[local / "privacy.json"] = privacy
        own = local / hardened.SITE_FILE
        if not own.exists() and own.resolve() in _site_files(privacy, local):
            wanted[own] = SITE_TEMPLATE
    return _changed(wanted)


def _changed(wanted: Mapping[Path, Mapping[str, Any] | str]) -> list[Change]:
    texts = {
        path: content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        for path, content in wanted.items()
    }
    found = [Change(path, path.read_text("utf-8") if path.exists() else "", text) for path, text in texts.items()]
    return [change for change in found if not _same(change)]


def apply(kit: StartupKit, todo: list[Change]) -> None:
    """Write the changes and take group's and others' rights off the kit's files.

    So with the authority's keys, where the kit still lies in the workspace that holds them.

    Raises:
        StateError: A file cannot be written.
        DataError: The rights of a file cannot be changed.
    """
    for change in todo:
        write_text(change.path, change.after, mode=0o600)
    jobs = hardened.storage_folders(kit.local("resources.json")).get("jobs")
    if kit.role == "server" and jobs:
        Path(jobs).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, mode in modes(kit):
        try:
            path.chmod(mode)
        except OSError as error:
            raise DataError(f"the rights of {path} cannot be changed ({error}): run it as their owner.") from error
    state = state_beside(kit.folder)
    if state is not None:
        make_private(state)


def modes(kit: StartupKit) -> list[tuple[Path, int]]:
    """The kit's folders and files with the rights that they should have: the owner's alone."""
    found = [(kit.folder, 0o700)]
    for folder in (kit.folder / "startup", kit.folder / "local"):
        for path in [folder, *sorted(folder.rglob("*"))]:
            if path.is_symlink():
                continue
            found.append((path, 0o700 if path.is_dir() or path.suffix == ".sh" else 0o600))
    return found


def _site_files(privacy: Mapping[str, Any], local: Path) -> set[Path]:
    """The site files that the scopes of a privacy.json name; a relative one starts at `local`."""
    properties = [(scope.get("properties") or {}).get(PROPERTY) for scope in privacy["scopes"]]
    named = [str(one["site_file"]) for one in properties if isinstance(one, Mapping) and one.get("site_file")]
    return {(local / name).resolve() for name in named}


def _check_options(
    kit: StartupKit,
    bind: str | None,
    storage: Path | None,
    site_file: Path | None,
    approval: bool,
    cards: tuple[int, float] | None,
) -> None:
    if kit.role != "server" and (bind is not None or storage is not None):
        raise SettingsError("--bind and --storage are for a server's kit: leave them out.")
    if kit.role != "site" and (site_file is not None or approval or cards is not None):
        raise SettingsError("--site-file, --require-approval and --gpus are for a site's kit: leave them out.")
    if cards is not None and cards[0] > 0 and cards[1] <= 0:
        raise SettingsError(
            "say how much memory each GPU has for jobs: --gpu-memory GIB, below what `nvidia-smi` shows."
        )
    if kit.role == "server" and bind is None and kit.target[0] not in hardened.LISTENS.values():
        raise SettingsError(
            "say where the server listens: --bind all (every interface of this machine) or --bind loopback."
        )


def _proxy(kit: StartupKit, asked: str | None, login: Path | None) -> Proxy | None:
    """The proxy that the kit shall go through: the one that is asked for, or the one that it names already."""
    if asked is None and login is None:
        return proxy_of(kit)
    if kit.role == "server":
        raise SettingsError("--proxy is for a site's or an admin's kit: hospitals connect to the server.")
    if asked is None or (asked == DIRECT and login is not None):
        raise SettingsError("--proxy-login belongs to --proxy: name the proxy, too.")
    if asked == DIRECT:
        return None
    if kit.scheme not in (FLARES_SCHEME, SCHEME):
        raise SettingsError(
            f"this kit speaks {kit.scheme!r} with its server, and only {FLARES_SCHEME!r}, FLARE's default, goes "
            "through a proxy here: ask the project admin to provision with that."
        )
    found = Proxy.read(asked, None if login is None else login.resolve())
    if faults := found.login_faults():
        raise DataError(f"{faults[0]}: it must be a file of the service's user alone (chmod 600), with user:password.")
    return found


def _storage(kit: StartupKit, storage: Path | None) -> Path:
    if storage is None:
        now = hardened.storage_folders(kit.local("resources.json")).get("jobs", "")
        lasting = now and not hardened.is_temporary(Path(now))
        storage = Path(now).parent if lasting else kit.folder / "storage"
    storage = storage.resolve()
    if hardened.is_temporary(storage):
        raise DataError(f"{storage} may be emptied by a restart: give --storage a folder that lasts.")
    return storage


def _same(change: Change) -> bool:
    if change.path.suffix == ".json" and change.before:
        try:
            return bool(json.loads(change.before) == json.loads(change.after))
        except ValueError:
            return False
    return change.before == change.after
