"""Whether a site's service sees the files that its site file names: its systemd unit hides some folders from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedretina.kit.addresses import unit_of, unit_says
from fedretina.kit.findings import Finding, bad
from fedretina.kit.startup_kit import StartupKit
from fedretina.settings.site import SiteSettings

_WHAT = "service's files"
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
"""What systemd's ProtectHome= is about."""
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))
"""What its PrivateTmp= is about."""
_SETTINGS = (
    "BindPaths",
    "BindReadOnlyPaths",
    "PrivateTmp",
    "ProtectHome",
    "ProtectSystem",
    "ReadWritePaths",
    "TemporaryFileSystem",
)
_YES = frozenset({"yes", "true", "on", "1"})
_READ_ONLY = "read-only"


class _Hiding(NamedTuple):
    """Folders in whose place the service sees others.

    Attributes:
        said: The setting and its word.
        folders: The folders.
        bound: Whether paths that the unit binds are seen all the same.
        home: Whether it is about people's home folders.
    """

    said: str
    folders: tuple[Path, ...]
    bound: bool
    home: bool


def sight_finding(kit: StartupKit, settings: SiteSettings, root: Path) -> Finding | None:
    """The fault that the service will not see, or not write, a file that this check sees; None when all is well.

    Args:
        kit: The site's kit.
        settings: Its settings.
        root: Where its runs lie.

    Raises:
        DataError: A file of the unit cannot be read.
    """
    said = unit_says(kit, _SETTINGS)
    if said is None:
        return None
    data = settings.data
    read = {
        "data.manifest": data.manifest,
        "data.images": data.images,
        "weights_file": settings.weights_file,
        "he_keys": settings.he_keys,
    }
    written = {"data.cache": data.cache, "state_root": root, "page": settings.page and settings.page.parent}
    paths = {name: path for name, path in {**read, **written}.items() if path is not None}
    bound, shown = _targets(said["BindPaths"]), _targets(said["BindReadOnlyPaths"])
    hidden = {}
    for hiding in _hiding(said):
        seen = (*bound, *shown) if hiding.bound else ()
        for name, path in paths.items():
            if name not in hidden and _is_below(path, hiding.folders) and not _is_below(path, seen):
                hidden[name] = hiding
    # What is seen need not be writable.
    open_ = (*bound, *_targets(said["ReadWritePaths"]))
    strict = _last(said, "ProtectSystem") == "strict"
    home = _last(said, "ProtectHome") == _READ_ONLY
    shut = {
        name: "ProtectSystem=strict" if strict else f"ProtectHome={_READ_ONLY}"
        for name in written
        if name in paths and name not in hidden and not _is_below(paths[name], open_)
        if strict or (home and _is_below(paths[name], _HOMES))
    }
    if not hidden and not shut:
        return None
    unseen = {name: hiding.said for name, hiding in hidden.items()}
    faults = [*_told(paths, unseen, "is not seen"), *_told(paths, shut, "may not be written")]
    lines: dict[str, list[Path]] = {}
    for name, hiding in hidden.items():
        if hiding.home:
            lines.setdefault(f"ProtectHome={_READ_ONLY}", [])
        if not hiding.home:
            lines.setdefault("BindPaths=" if name in written else "BindReadOnlyPaths=", []).append(paths[name])
        elif name in written:
            lines.setdefault("ReadWritePaths=", []).append(paths[name])
    for name in shut:
        rebind = _is_below(paths[name], shown)
        lines.setdefault("BindPaths=" if rebind else "ReadWritePaths=", []).append(paths[name])
    return _fault(kit, faults, lines, dict.fromkeys(folder for one in hidden.values() for folder in one.folders))


def _hiding(said: Mapping[str, Sequence[str]]) -> list[_Hiding]:
    home = _last(said, "ProtectHome")
    found = []
    if home in _YES or home == "tmpfs":
        found.append(_Hiding(f"ProtectHome={home}", _HOMES, bound=home == "tmpfs", home=True))
    if (own := _last(said, "PrivateTmp")) in _YES or own == "disconnected":
        found.append(_Hiding(f"PrivateTmp={own}", _TEMPORARY, bound=True, home=False))
    for word in said["TemporaryFileSystem"]:
        folder = Path(word.split(":")[0])
        found.append(_Hiding(f"TemporaryFileSystem={word}", (folder,), bound=True, home=False))
    return found


def _fault(
    kit: StartupKit, faults: Sequence[str], lines: Mapping[str, Sequence[Path]], out: Collection[Path]
) -> Finding:
    unit = unit_of(kit)
    words = " and ".join(f"`{line}{' '.join(map(str, dict.fromkeys(paths)))}`" for line, paths in lines.items())
    mend = f"write {words} below `[Service]` in `systemctl edit {unit}`, and restart the service."
    if out:
        mend = f"move it out of {', '.join(map(str, out))}; or {mend}"
    return bad(_WHAT, f"{unit} hides files from the service: {'; '.join(faults)}", mend)


def _last(said: Mapping[str, Sequence[str]], name: str) -> str:
    return said[name][-1].casefold() if said[name] else ""


def _told(paths: Mapping[str, Path], reasons: Mapping[str, str], what: str) -> list[str]:
    """One sentence for each reason, with the files that it is about."""
    by_reason: dict[str, list[str]] = {}
    for name, said in reasons.items():
        by_reason.setdefault(said, []).append(f"{name} ({paths[name]})")
    return [f"{', '.join(names)} {what} ({said})" for said, names in by_reason.items()]


def _targets(words: Sequence[str]) -> tuple[Path, ...]:
    """Where the paths of a unit's setting are in the service: `[-+]SOURCE[:TARGET[:OPTIONS]]`."""
    parts = [word.lstrip("-+").split(":") for word in words]
    return tuple(Path(part[1] if len(part) > 1 and part[1] else part[0]) for part in parts)


def _is_below(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a path is one of some folders or in one, symbolic links followed: the unit follows them, too."""
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)
