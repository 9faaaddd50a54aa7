"""Whether a site's service sees the files that its site file names: its systemd unit hides people's home folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedretina.kit.addresses import unit_of, unit_says
from fedretina.kit.findings import Finding, bad
from fedretina.kit.startup_kit import StartupKit
from fedretina.settings.site import SiteSettings

_WHAT = "service's files"
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
"""What systemd's ProtectHome= is about."""
_YES = frozenset({"yes", "true", "on", "1"})
_TMPFS, _READ_ONLY = "tmpfs", "read-only"


def sight_finding(kit: StartupKit, settings: SiteSettings, root: Path) -> Finding | None:
    """The fault that the service will not see, or not write, a file that this check sees; None when all is well.

    Args:
        kit: The site's kit.
        settings: Its settings.
        root: Where its runs lie.

    Raises:
        DataError: A file of the unit cannot be read.
    """
    said = unit_says(kit, ("ProtectHome", "ReadWritePaths", "BindPaths", "BindReadOnlyPaths"))
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
    at_home = {name: path for name, path in {**read, **written}.items() if path is not None and _is_below(path, _HOMES)}
    mode = said["ProtectHome"][-1].casefold() if said["ProtectHome"] else ""
    bound = _targets(said["BindPaths"])
    if mode in _YES:
        hidden = at_home
    elif mode == _TMPFS:
        seen = {**dict.fromkeys(read, (*bound, *_targets(said["BindReadOnlyPaths"]))), **dict.fromkeys(written, bound)}
        hidden = {name: path for name, path in at_home.items() if not _is_below(path, seen[name])}
    elif mode == _READ_ONLY:
        open_ = (*bound, *_targets(said["ReadWritePaths"]))
        hidden = {name: path for name, path in at_home.items() if name in written and not _is_below(path, open_)}
    else:
        return None
    return _fault(kit, mode, hidden, [path for name, path in hidden.items() if name in written]) if hidden else None


def _fault(kit: StartupKit, mode: str, hidden: Mapping[str, Path], written: Sequence[Path]) -> Finding:
    unit = unit_of(kit)
    named = ", ".join(f"{name} ({path})" for name, path in hidden.items())
    lines = [f"`ProtectHome={_READ_ONLY}`"]
    if written:
        lines.append(f"`ReadWritePaths={' '.join(map(str, dict.fromkeys(written)))}`")
    mend = (
        f"move them out of {', '.join(map(str, _HOMES))}; or write {' and '.join(lines)} below `[Service]` in "
        f"`systemctl edit {unit}`, and restart the service."
    )
    return bad(_WHAT, f"{unit} says ProtectHome={mode}, so the service does not see, or may not write, {named}", mend)


def _targets(words: Sequence[str]) -> tuple[Path, ...]:
    """Where the paths of a unit's setting are in the service: `[-+]SOURCE[:TARGET[:OPTIONS]]`."""
    parts = [word.lstrip("-+").split(":") for word in words]
    return tuple(Path(part[1] if len(part) > 1 and part[1] else part[0]) for part in parts)


def _is_below(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a path is one of some folders or in one, symbolic links followed: the unit follows them, too."""
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)
