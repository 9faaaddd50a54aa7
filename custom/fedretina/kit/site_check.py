"""The check of a hospital's site before it starts, or while it runs: nothing is registered, changed or sent."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedretina.errors import DataError, FedretinaError, StateError
from fedretina.exchange.ledger import ledgers
from fedretina.kit import machine_check
from fedretina.kit.addresses import moved_finding
from fedretina.kit.check import WARN_DAYS, check_kit
from fedretina.kit.door import Door, knock
from fedretina.kit.findings import Finding, bad, good, judged, note
from fedretina.kit.hardened import cards_offered, is_temporary
from fedretina.kit.proxy import of_environment, proxy_of
from fedretina.kit.service_sight import sight_finding
from fedretina.kit.startup_kit import StartupKit
from fedretina.kit.waiting_plans import WaitingPlans
from fedretina.plurals import counted
from fedretina.seeds import torch_device
from fedretina.settings.experiment import Experiment
from fedretina.settings.images import AugmentSettings, modality_settings
from fedretina.settings.site import (
    APPROVAL,
    REQUIRED,
    SiteSettings,
    read_site_settings,
    scope_properties,
    shares_named_root,
    site_modality,
    site_scheme,
)
from fedretina.storage import read_json, write_json
from fedretina.version import __version__

if TYPE_CHECKING:
    from fedretina.data.site_data import SiteData

_log = logging.getLogger(__name__)
_FLARE = ("2.9", "2.10")
_CLOCK_S = 30.0
STATUS = "status"
"""Folder of pages, and of what they are made of, beside the runs."""
REFRESH_S = 60.0
"""How often a running process writes its page anew, in seconds."""
SILENT_S = 5 * REFRESH_S
"""A process that has written nothing for so long is taken for stopped, and its page for old."""
FREE_GB = 5.0
"""Less free room than this is a fault."""
_FEW = {"train": 16, "val": 8, "test": 8}
_OTHER_CERTIFICATE = "ask the project admin to give the server another certificate."
_MEND_SITE_FILE = "write it: docs/joining.md, Data."


def check_site(kit: StartupKit, experiment: Experiment, offline: bool = False, phantom: bool = False) -> list[Finding]:
    """Look at everything that a site needs for a run.

    Args:
        kit: The site's kit.
        experiment: Whose network the dry pass uses.
        offline: Leave the server alone.
        phantom: Whether the site may be a phantom hospital, for rehearsals.

    Raises:
        DataError: A file of the kit cannot be read, it is no site's kit, or root asks for a service of another user.
    """
    if kit.role != "site":
        raise DataError(f"{kit.folder} is no site's kit but that of {kit.name}: use `fedretina kit check` for it.")
    owner = kit.folder.stat().st_uid
    if os.getuid() == 0 and owner != 0:
        raise DataError(
            "this check writes a cache beside the site's runs, and root's files would be closed to the service: "
            f"run it as the kit's owner, `sudo -u '#{owner}' fedretina site check {kit.folder}`."
        )
    findings = check_kit(kit)
    findings += [_versions(), *([] if offline else _server(kit))]
    try:
        settings = site_settings(kit)
    except DataError as error:
        return [*findings, bad("site file", str(error), _MEND_SITE_FILE)]
    root = state_root_of(kit, settings)
    offered, _ = cards_offered(kit.local("resources.json"))
    cache = settings.data.cache or root / "cache"
    findings += [approval_finding(kit, settings), _state(kit, settings), _disk(kit, settings)]
    unseen = sight_finding(kit, settings, root)
    findings += [] if unseen is None else [unseen]
    findings += [machine_check.cache(cache, nearest(cache)), machine_check.gpu(offered), machine_check.shared_memory()]
    findings.append(machine_check.locks(kit.folder, root, kit.name, serves(root, kit.name)))
    found = _attempt("data", lambda: _data(kit, settings, experiment, phantom), findings)
    if found is not None:
        _attempt("dry forward pass", lambda: (_forward(found, experiment), None), findings)
    return findings


def site_settings(kit: StartupKit) -> SiteSettings:
    """The settings of a site as a job without a scope of its own would see them.

    Raises:
        DataError: The kit's privacy.json or the site file cannot be used.
    """
    return read_site_settings(properties_of(kit), kit.name, kit.folder / "local")


def properties_of(kit: StartupKit) -> Mapping[str, Any]:
    """The scope properties of a kit, of a site's or of the server's.

    Raises:
        DataError: The kit's privacy.json cannot be read.
    """
    return scope_properties(kit.local("privacy.json") if (kit.folder / "local" / "privacy.json").exists() else {})


def keep_findings(kit: StartupKit, findings: Sequence[Finding]) -> None:
    """Leave what a check found, with its time, for the site's page; a check that cannot be kept is a warning."""
    try:
        path = _kept_path(state_root_of(kit, site_settings(kit)), kit.name)
        write_json(path, {"time": time.time(), "findings": [finding._asdict() for finding in findings]})
    except FedretinaError as error:
        _log.warning("the site's page will not know of this check: %s", error)


def process_path(root: Path, name: str) -> Path:
    """Where the lasting process of an end says how it is, for its page."""
    return root / STATUS / f"{name}.process.json"


def serves(root: Path, name: str) -> bool:
    """Whether the service of an end runs, by its own last word; one that does not speak may run all the same."""
    try:
        said = read_json(process_path(root, name))
        return not said["stopped"] and time.time() - float(said["written"]) < SILENT_S
    except (StateError, KeyError, TypeError, ValueError):
        return True


def last_check(root: Path, name: str) -> tuple[float, list[Finding]] | None:
    """When a site was checked last, in seconds since 1970, and what was found; None where that is not known."""
    try:
        kept = read_json(_kept_path(root, name))
        return float(kept["time"]), [Finding(**finding) for finding in kept["findings"]]
    except (StateError, KeyError, TypeError, ValueError):
        return None


def _kept_path(root: Path, name: str) -> Path:
    return root / STATUS / f"{name}.check.json"


def usual_experiment(kit: StartupKit) -> Experiment:
    """FedUAA's defaults for what the site's images are; fundus photographs where the site does not say.

    Raises:
        DataError: The kit's privacy.json cannot be read.
    """
    try:
        modality = site_modality(site_settings(kit).data) if kit.role == "site" else None
    except DataError:
        modality = None  # the check itself tells of a site file that cannot be used
    if modality is None:
        return Experiment.resolve({})
    unfit = AugmentSettings().unfit(modality_settings(modality))
    return Experiment.resolve({"images": {"modality": modality}, "augment": dict.fromkeys(unfit, 0)})


def state_root_of(kit: StartupKit, settings: SiteSettings) -> Path:
    """Where a site's runs and ledgers lie."""
    return (settings.state_root or kit.folder / "fedretina_runs").resolve()


def site_ledgers(kit: StartupKit, settings: SiteSettings, run: str | None = None) -> list[Path]:
    """The ledgers of a site, those too that it kept under another name; the folder of each is named after its name.

    Where other sites of a rehearsal may have theirs under the same state root, the name decides.

    Args:
        kit: The site's kit.
        settings: Its settings.
        run: Only those of this run.

    Raises:
        DataError: The kit's privacy.json cannot be read.
    """
    shared = shares_named_root(settings, properties_of(kit))
    return ledgers(state_root_of(kit, settings), kit.name if shared else None, run)


def approval_finding(kit: StartupKit, settings: SiteSettings) -> Finding:
    """Whether runs need the hospital's approval here, and what waits for one."""
    if settings.approval != REQUIRED:
        return note(APPROVAL, "not asked for: a job of the consortium begins at once (`approval: required` asks)")
    plans = WaitingPlans(kit).all()
    waiting = sum(plan.asks for plan in plans)
    if not waiting:
        old = f", but {len(plans)} that no job asks for any more" if plans else ""
        return good(APPROVAL, f"no run begins without it; none waits{old}")
    text = f"{counted(waiting, 'plan')} wait{'s' if waiting == 1 else ''} for the hospital's approval"
    return bad(APPROVAL, text, f"look at it with `fedretina site approve` on the kit of {kit.name}.")


def _attempt(
    what: str, look: Callable[[], tuple[Finding, SiteData | None]], findings: list[Finding]
) -> SiteData | None:
    """Add what a look finds; its error is a finding too."""
    try:
        finding, found = look()
    except FedretinaError as error:
        findings.append(bad(what, str(error), _MEND_SITE_FILE))
        return None
    findings.append(finding)
    return found


def _versions() -> Finding:
    flare, torch = (importlib.metadata.version(name) for name in ("nvflare", "torch"))
    python = platform.python_version()
    faults = []
    if tuple(map(int, flare.split(".")[:2])) != tuple(map(int, _FLARE[0].split("."))):
        faults.append(f"nvflare {flare}")
    if not (3, 11) <= sys.version_info[:2] < (3, 15):
        faults.append(f"Python {python}")
    text = f"fedretina {__version__}, nvflare {flare}, torch {torch}, Python {python}"
    return judged("versions", faults, text, f"install fedretina {__version__} from its lock: all ends run the same.")


def _server(kit: StartupKit) -> list[Finding]:
    door = knock(kit)
    moved = moved_finding(kit)
    found = [] if moved is None else [moved]
    found += _environment(kit, door)
    if not door.timely:
        return [*found, *_untimely(door)]
    if door.problem:
        return [*found, bad("server", door.problem, door.mend or _OTHER_CERTIFICATE)]
    host, port = kit.target
    proxy = proxy_of(kit)
    way = "" if proxy is None else f", through the proxy {proxy}, which does not open TLS"
    found.append(good("server", f"{host}:{port} knows this site's certificate{way}"))
    if door.tls:
        beside = ", and takes TLS 1.2 as well: its admin starts it with OPENSSL_CONF" if door.takes_old else ""
        found.append(note("server's TLS", f"{door.tls}{beside}"))
    if door.begins is not None and door.ends is not None:
        found.append(_generation(kit, door.begins, door.ends))
    return [*found, note("clock", "the server does not say its time") if door.ahead_s is None else _clock(door.ahead_s)]


def _environment(kit: StartupKit, door: Door) -> list[Finding]:
    """A proxy that this process's environment names and the kit does not, or not as the same: FLARE does not ask it."""
    named, proxy = of_environment(), proxy_of(kit)
    if named is None or str(proxy) == f"http://{named}":
        return []
    text = f"the environment names {named}, which the site does not use: its kit names {proxy or 'none'}"
    if proxy is not None or not door.problem:
        return [note("proxy of the environment", text)]
    mend = f"if it is the way out: `fedretina kit harden {kit.folder} --proxy http://{named}`; docs/network.md."
    return [bad("proxy of the environment", text, mend)]


def _generation(kit: StartupKit, begins: datetime, ends: datetime) -> Finding:
    """Whether kit and server are of one provisioning: both have the authority, so only their days tell them apart."""
    own = kit.certificate.begins
    days, left = (begins - own).total_seconds() / 86_400, (ends - datetime.now(UTC)).total_seconds() / 86_400
    text = f"kit of {own:%Y-%m-%d}, server's of {begins:%Y-%m-%d}"
    if left < WARN_DAYS:
        return bad("generation", f"{text}, whose certificate ends {ends:%Y-%m-%d}", _OTHER_CERTIFICATE)
    if abs(days) < 1:
        return good("generation", f"{text}: one provisioning")
    who = "the server's is newer: ask the project admin whether yours was written anew, too"
    return note("generation", f"{text}; {who if days > 0 else 'this kit is newer, as after a renewal'}")


def _untimely(door: Door) -> list[Finding]:
    """The server's certificate does not hold by this clock: either of the two may be wrong."""
    if door.ahead_s is None:
        return [bad("server", door.problem, f"look at this machine's clock; if it is right, {_OTHER_CERTIFICATE}")]
    clock = _clock(door.ahead_s)
    if clock.good:
        return [bad("server", f"{door.problem} and by its own", _OTHER_CERTIFICATE), clock]
    return [bad("server", door.problem, "set this machine's clock, and check again."), clock]


def _clock(ahead_s: float) -> Finding:
    """How far this clock is from the server's."""
    text = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s >= 0 else 'behind'} the server's"
    faults = [text] if abs(ahead_s) > _CLOCK_S else []
    return judged("clock", faults, text, "keep the clock with NTP, such as systemd-timesyncd or chrony.")


def _state(kit: StartupKit, settings: SiteSettings) -> Finding:
    root = state_root_of(kit, settings)
    faults = []
    if is_temporary(root):
        faults.append(f"{root} may be emptied by a restart")
    lies = nearest(root)
    probe = lies / f".fedretina-check-{kit.name}"
    try:
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        faults.append(f"{lies} cannot be written ({error.strerror})")
    return judged(
        "state", faults, str(root), "set state_root in the site file to a lasting folder of the service's user."
    )


def _disk(kit: StartupKit, settings: SiteSettings) -> Finding:
    places = {state_root_of(kit, settings), settings.data.cache or state_root_of(kit, settings)}
    free = {str(place): shutil.disk_usage(nearest(place)).free / 1e9 for place in sorted(places)}
    faults = [f"{place} has {room:.1f} GB free" for place, room in free.items() if room < FREE_GB]
    text = ", ".join(f"{room:.0f} GB free for {place}" for place, room in free.items())
    return judged("disk", faults, text, f"make room: at least {FREE_GB:.0f} GB; a full disk costs the site its rounds.")


def nearest(path: Path) -> Path:
    """The path itself, or the nearest folder above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _data(
    kit: StartupKit, settings: SiteSettings, experiment: Experiment, phantom: bool
) -> tuple[Finding, SiteData | None]:
    from fedretina.data.manifest import read_manifest
    from fedretina.data.site_data import load_site_data

    root = state_root_of(kit, settings)
    cache = root / "cache" / f"{kit.name}-check"
    if settings.data.manifest is None:
        phantoms = {"phantom_images": experiment.phantom_images or 160}
        site = load_site_data(
            kit.name,
            settings.data.model_copy(update=phantoms),
            experiment.images,
            experiment.seed,
            cache,
            experiment.supervised,
        )
        text = "none: the site is a phantom hospital with synthetic images"
        return (note("data", text) if phantom else bad("data", text, _MEND_SITE_FILE)), site
    scheme = site_scheme(settings.data)
    if scheme is None and experiment.supervised:
        return bad("data", "the grading scheme is not set", _MEND_SITE_FILE), None
    manifest = read_manifest(settings.data.manifest, scheme, settings.data.columns)
    folder = settings.data.images or settings.data.manifest.parent
    records = [record for split in _FEW for record in manifest.of(split)]
    missing = [record.file for record in records if not (folder / record.file).is_file()]
    few = settings.data.model_copy(update={"limit": _FEW, "cache": cache})
    site = load_site_data(
        kit.name, few, experiment.images, experiment.seed, cache, experiment.supervised, trains=experiment.trains
    )
    counts = "/".join(str(len(manifest.of(split))) for split in _FEW)
    grades = "no grades" if scheme is None else f"{scheme.num_classes} grades"
    text = f"{counts} images (train/val/test), {grades}"
    faults = []
    if missing:
        faults.append(f"{len(missing)} of {len(records)} files are missing, such as {missing[0]}")
    if site.bad_files:
        faults.append(f"{site.bad_files} of {sum(_FEW.values())} tried cannot be read")
    return judged("data", faults, text, "run `fedretina data check` on the manifest."), site


def _forward(site: SiteData, experiment: Experiment) -> Finding:
    import torch

    from fedretina.local.model import site_network

    net = site_network(experiment, site.grading)
    device = torch_device(experiment.training)
    images = site.split("pretrain").images[: experiment.training.batch_size].float().div(255)
    net.to(device).eval()
    with torch.inference_mode():
        logits = net(images.to(device))
    text = f"{experiment.network.encoder} on {device.type}, {len(images)} images of {images.shape[-1]} pixels"
    faults = [] if bool(torch.isfinite(logits).all()) else ["the network's answer is not finite"]
    start = net.provenance
    seen = sorted({*site.public_sets} & {*(start["sets"] if start is not None and "sets" in start else ())})
    if seen:
        text += f"; the encoder was pre-trained on {', '.join(seen)}, which this site's images are of: figures on them "
        text += "may be too good"
    return judged("dry forward pass", faults, text, "look at the images with `fedretina data check`.")
