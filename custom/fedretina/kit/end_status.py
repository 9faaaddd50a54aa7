"""How an end of the federation is, a site or the server, as its own files say it: what its page shows.

Nothing is asked of FLARE or of the network here. The process that runs for months writes down whether it is connected
(`PROCESS`), the process of a job writes its last step, the ledger says what left, `site check` what it found last. So a
page can be made at any time, and is true whether a federation runs or not.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.errors import FedretinaError, StateError
from fedretina.exchange.ledger import LEDGER, REFUSALS, Ledger
from fedretina.kit.approvals import Approvals
from fedretina.kit.check import WARN_DAYS
from fedretina.kit.findings import Finding, bad, good, note
from fedretina.kit.site_check import (
    FREE_GB,
    SILENT_S,
    STATUS,
    approval_finding,
    last_check,
    nearest,
    process_path,
    properties_of,
    site_ledgers,
    site_settings,
    state_root_of,
)
from fedretina.kit.startup_kit import StartupKit, read_certificate
from fedretina.kit.waiting_plans import WaitingPlans
from fedretina.settings.site import APPROVAL, REQUIRED, ServerSettings, SiteSettings, read_server_settings
from fedretina.storage import SERVER, read_json
from fedretina.tracking.last_step import LAST_STEP, read_last_step
from fedretina.version import __version__

_RUNS = 8
_FAULTS = 5
_DECISIONS = 8
_CHECK_IS_OLD_S = 30 * 86_400.0


class Process(NamedTuple):
    """What the lasting process of an end last said of itself.

    Attributes:
        written: When, in seconds since 1970.
        started: When it started.
        stopped: Whether it has ended in good order.
        connected: Whether the server answers it; of a server, whether it takes sites.
        since: Since when that is so.
        sites: Of a server: the sites that are connected, and since when.
        jobs: Ids of the jobs whose processes run.
    """

    written: float
    started: float
    stopped: bool
    connected: bool
    since: float
    sites: Mapping[str, float]
    jobs: Sequence[str]

    @property
    def silent(self) -> bool:
        """Whether it has not written for so long that it is stopped or stuck."""
        return time.time() - self.written > SILENT_S


class RunStatus(NamedTuple):
    """One run, as its end has noted it.

    Attributes:
        run: Name of the run, with the site's name where it was another one then.
        last: The last step; see `tracking.last_step`. None where an older version ran.
        messages: Of a site: how many messages have left.
        bytes_today: Bytes of tensors that left since midnight UTC.
        bytes_all: Bytes of tensors that have left.
        undated: Messages whose line in the ledger has no time, from an older version.
        changed: When something of it was last written, in seconds since 1970.
    """

    run: str
    last: Mapping[str, Any] | None
    messages: int
    bytes_today: int
    bytes_all: int
    undated: int
    changed: float


class EndStatus(NamedTuple):
    """All that a page shows.

    Attributes:
        role: "site" or "server".
        name: The end's name.
        organisation: Of its certificate.
        written: When this was put together, in seconds since 1970.
        kept_fresh: Whether a running process writes the page anew every minute.
        process: What the lasting process last said; None where none has run since this version was installed.
        runs: The newest runs first, few of them.
        more_runs: How many older runs are not shown.
        findings: Certificates, disk, GPU, last check, faults.
        faults: Time, run and words of the last faults, the newest first; each says how to mend it.
        approvals: Sentences about the hospital's approvals; None where approval is not asked for.
        bytes_today: Bytes of tensors that left since midnight UTC, over all runs.
        bytes_all: Bytes of tensors that have left, over all runs.
        messages: How many messages have left, over all runs.
        refused_jobs: How many jobs the site did not take.
        versions: Of this package.
    """

    role: str
    name: str
    organisation: str
    written: float
    kept_fresh: bool
    process: Process | None
    runs: Sequence[RunStatus]
    more_runs: int
    findings: Sequence[Finding]
    faults: Sequence[tuple[float, str, str]]
    approvals: Sequence[str] | None
    bytes_today: int
    bytes_all: int
    messages: int
    refused_jobs: int
    versions: str


class EndFiles:
    """Reads the files of one end, a ledger only when it has grown; one object serves a process for its life.

    Attributes:
        root: Folder of the end's runs.
        page: Where its page lies.
        page_mode: Rights of the page: others may read one whose place the settings name, which the service's umask
            would keep from them; None for those that the process gives every file.

    Args:
        kit: The kit of a site or a server.

    Raises:
        FedretinaError: Its settings cannot be used.
    """

    def __init__(self, kit: StartupKit) -> None:
        self._kit = kit
        self._read: dict[Path, tuple[tuple[int, int], list[dict[str, Any]]]] = {}
        settings = _settings(kit)
        self.root = _root(kit, settings)
        self.page = (settings.page or self.root / STATUS / f"{self.own}.html").absolute()
        self.page_mode = None if settings.page is None else 0o644
        self._places = {self.root}
        if isinstance(settings, SiteSettings) and settings.data.cache is not None:
            self._places.add(settings.data.cache)
        self._site_settings = settings if isinstance(settings, SiteSettings) else None
        self._manifest = settings.data.manifest if isinstance(settings, SiteSettings) else None

    @property
    def process_path(self) -> Path:
        """Where the lasting process says how it is."""
        return process_path(self.root, self.own)

    @property
    def own(self) -> str:
        """Name of the end's folder in a run's."""
        return SERVER if self._kit.role == "server" else self._kit.name

    def unfinished(self) -> list[str]:
        """Runs that began at this end and have no result here."""
        record, result = ("run.json", "results.json") if self._kit.role == "server" else ("state.json", "final")
        begun = (path.parent for path in sorted(self.root.glob(f"*/{self.own}/{record}")))
        return [folder.parent.name for folder in begun if not (folder / result).exists()]

    def run_names(self) -> set[str]:
        """Runs that have worked at this end, whether they have ended or not."""
        return {folder.parent.name for folder in self._run_folders()}

    def status(self, kept_fresh: bool, devices: Sequence[str] | None = None) -> EndStatus:
        """Put together how the end is now.

        Args:
            kept_fresh: Whether a running process writes the page anew every minute.
            devices: CUDA devices that this process sees; None where it has not looked, and the last job's are told.
        """
        kit, runs = self._kit, self._runs()
        faults = [
            (float(fault["time"]), run.run, str(fault["words"]))
            for run in runs
            for fault in (run.last or {}).get("faults", ())
        ]
        refusals = self._lines(kit.folder / REFUSALS) if kit.role == "site" else []
        return EndStatus(
            role=kit.role,
            name=kit.name,
            organisation=kit.certificate.organisation,
            written=time.time(),
            kept_fresh=kept_fresh,
            process=self._process(),
            runs=runs[:_RUNS],
            more_runs=max(len(runs) - _RUNS, 0),
            findings=[*_certificates(kit), *map(_disk, sorted(self._places)), *self._of_site(runs, devices)],
            faults=sorted(faults, reverse=True)[:_FAULTS],
            approvals=self._approvals(),
            bytes_today=sum(run.bytes_today for run in runs),
            bytes_all=sum(run.bytes_all for run in runs),
            messages=sum(run.messages for run in runs),
            refused_jobs=len(refusals),
            versions=f"fedretina {__version__}",
        )

    def _process(self) -> Process | None:
        try:
            return Process(**read_json(self.process_path))
        except (StateError, TypeError):
            return None

    def _run_folders(self) -> set[Path]:
        folders = {path.parent for path in self.root.glob(f"*/{self.own}/{LAST_STEP}")}
        if self._site_settings is not None:
            folders |= {path.parent for path in site_ledgers(self._kit, self._site_settings)}
        return folders

    def _runs(self) -> list[RunStatus]:
        return sorted((self._run(folder) for folder in self._run_folders()), key=lambda run: run.changed, reverse=True)

    def _run(self, folder: Path) -> RunStatus:
        lines = self._lines(folder / LEDGER)
        today = datetime.now(UTC).date().isoformat()
        changed = [path.stat().st_mtime for path in (folder / LAST_STEP, folder / LEDGER) if path.exists()]
        return RunStatus(
            run=folder.parent.name if folder.name == self.own else f"{folder.parent.name} (as {folder.name})",
            last=read_last_step(folder),
            messages=len(lines),
            bytes_today=sum(line["bytes"] for line in lines if str(line.get("time", "")).startswith(today)),
            bytes_all=sum(line["bytes"] for line in lines),
            undated=sum("time" not in line for line in lines),
            changed=max(changed, default=0.0),
        )

    def _lines(self, path: Path) -> list[dict[str, Any]]:
        try:
            found = path.stat()
        except OSError:
            return []
        state = found.st_mtime_ns, found.st_size
        known = self._read.get(path)
        if known is None or known[0] != state:
            needed = frozenset({"bytes", "time"})
            kept = [{name: line[name] for name in needed & line.keys()} for line in Ledger(path).lines()]
            self._read[path] = known = (state, kept)
        return known[1]

    def _of_site(self, runs: Sequence[RunStatus], devices: Sequence[str] | None) -> list[Finding]:
        if self._kit.role != "site":
            return []
        assert self._site_settings is not None
        asked = self._site_settings.approval == REQUIRED
        return [
            *([approval_finding(self._kit, self._site_settings)] if asked else []),
            _gpu(runs, devices),
            *self._checked(),
        ]

    def _approvals(self) -> list[str] | None:
        """What waits for the hospital and what it has decided, the newest first; None where nobody asks for it."""
        own, held = self._site_settings, Approvals(self._kit)
        if own is None or (own.approval != REQUIRED and not held.is_there):
            return None
        waiting = [f"{plan.words[0].upper()}{plan.words[1:]}." for plan in WaitingPlans(self._kit).all()]
        try:
            decided = held.decisions()[: -_DECISIONS - 1 : -1]
        except StateError:
            return [*waiting, "The list of approvals cannot be read, so no run begins: restore it from a backup."]
        return waiting + [_decided(made, held.is_genuine(made)) for made in decided]

    def _checked(self) -> list[Finding]:
        checked = last_check(self.root, self._kit.name)
        command = f"run `fedretina site check` on the kit of {self._kit.name}."
        if checked is None:
            return [note("site check", "never run, or with an older version")]
        when, findings = checked
        age, day = time.time() - when, datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M UTC")
        told = [note("site check", f"last run {day}")]
        if age > _CHECK_IS_OLD_S:
            told = [bad("site check", f"last run {day}, {age / 86_400:.0f} days ago", command)]
        try:
            if self._manifest is not None and self._manifest.stat().st_mtime > when:
                told.append(bad("data check", "the list of images has changed since the last check", command))
        except OSError:
            told.append(bad("data check", "the list of images cannot be read", command))
        # What was found wrong, and its mend, may name a file, a folder or an address: the check itself says both.
        for finding in findings:
            name = "data check" if finding.what == "data" else finding.what
            if finding.what == APPROVAL:
                continue  # looked at anew, above
            if finding.good is False:
                told.append(bad(name, f"must be mended, as of {day}", command))
            elif finding.what == "data":
                told.append(Finding(name, finding.good, finding.found))
        return told


def _decided(made: Mapping[str, Any], genuine: bool) -> str:
    """A decision as the page says it; its reason stays in the list."""
    word = str(made["decision"]).capitalize()
    if not genuine:
        word = f"{word}, but its signature does not hold"
    if made["until"]:
        over = made["until"] < datetime.now(UTC).date().isoformat()
        word += f" until {made['until']}{', which is over' if over else ''}"
    wide = ", with all plans that differ in named settings alone" if "standing" in made else ""
    return f"{word}: run {made['run']}{wide}; by {made['by']}, {str(made['decided'])[:10]}."


def _settings(kit: StartupKit) -> SiteSettings | ServerSettings:
    if kit.role == "site":
        return site_settings(kit)
    return read_server_settings(properties_of(kit))


def _root(kit: StartupKit, settings: SiteSettings | ServerSettings) -> Path:
    if isinstance(settings, SiteSettings):
        return state_root_of(kit, settings)
    return (settings.state_root or kit.folder / "fedretina_runs").resolve()


def _certificates(kit: StartupKit) -> list[Finding]:
    """The certificate that ends first, the end's own or the authority's."""
    try:
        root = read_certificate(kit.root_path)
    except FedretinaError:
        return [bad("certificate", "the authority's cannot be read", "restore rootCA.pem from the kit.")]
    whose, first = min((("its own", kit.certificate), ("the authority's", root)), key=lambda pair: pair[1].ends)
    left = first.days_left()
    text = f"{whose} ends next, on {first.ends:%Y-%m-%d}, {left:.0f} days left"
    if left < 0:
        text = f"{whose} has ended, on {first.ends:%Y-%m-%d}"
    if left < WARN_DAYS:
        return [bad("certificate", text, "ask the project admin for a renewal: provisioning/README.md, Renewal.")]
    return [good("certificate", text)]


def _disk(place: Path) -> Finding:
    """Room for runs, or for the image cache; the folder itself is not named."""
    try:
        used = shutil.disk_usage(nearest(place))
    except OSError:
        return bad("disk", "it does not answer", "look whether the disk of the runs is mounted.")
    text = f"{used.free / 1e9:.0f} GB of {used.total / 1e9:.0f} GB free"
    if used.free / 1e9 < FREE_GB:
        return bad("disk", text, f"make room: at least {FREE_GB:.0f} GB; a full disk costs the site its rounds.")
    return good("disk", text)


def _gpu(runs: Sequence[RunStatus], devices: Sequence[str] | None) -> Finding:
    seen, when = devices, "seen now"
    if seen is None:
        told = [run.last for run in runs if run.last is not None and "devices" in run.last]
        if not told:
            return note("GPU", "not known yet: no step has run here")
        seen = [str(name) for name in told[0]["devices"]]
        when = f"seen by the last job, {datetime.fromtimestamp(float(told[0]['time']), UTC):%Y-%m-%d %H:%M} UTC"
    return note("GPU", f"{', '.join(seen) or 'none, the processor does the work'} ({when})")
