"""A run over sites of this machine through FLARE's own simulator, with a site file for each.

Nothing of it is a second way to run: it writes the job folder that `fedretina job write` writes, hands each site its
settings as a startup kit does (`local/privacy.json`), starts the simulator that `nvflare simulator` and FLARE's SimEnv
start, and reads the log lines that a server and its sites write anywhere (`tracking.log`).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nvflare
import psutil

from fedretina.errors import RefusedError, SettingsError, StateError
from fedretina.flare.results_upload import FOLDER, STOPPED
from fedretina.jobs import job_files, write_job
from fedretina.locks import folder_lock
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import PROPERTY, SERVER_PROPERTY, SITE_NAME, SiteSettings
from fedretina.storage import read_json, write_text

SIMULATOR = "nvflare.private.fed.app.simulator.simulator"
"""What `nvflare simulator` and FLARE's SimEnv start, as a module."""
_SCOPE = "fedretina"
_LOOK_S = 0.3

Tell = Callable[[str, Mapping[str, Any]], None]
"""Takes a line that says what has just happened, and the record that it is made of (docs/watching.md)."""


class Simulation:
    """One run in FLARE's simulator.

    Its job, FLARE's workspace and all that FLARE prints lie under `root/simulator/RUN`; the run itself lies where every
    run does, under `root/RUN`.

    Attributes:
        log: All that FLARE printed.
        results: The run's results, once it has completed.

    Args:
        settings: All settings of the experiment.
        run: Name of the run; an unfinished one of that name goes on.
        sites: Settings of each site. Its state lies under the root, whatever they say, since a trial must not touch
            the state of a real run; the ledger and the noise budget of a trial are its own for the same reason.
        root: Folder of runs.

    Raises:
        RefusedError: A site's policy would refuse all of its own answers.
        SettingsError: The settings cannot be used, or the simulator cannot start a site below the root.
    """

    def __init__(self, settings: Mapping[str, Any], run: str, sites: Mapping[str, SiteSettings], root: Path) -> None:
        require_one_word(root.absolute(), "--root")
        self._settings = {**settings, "run": run}
        experiment = Experiment.resolve(self._settings)
        require_policies(experiment, sites)
        self._row, self._sites, self._root = experiment.row, sites, root.absolute()
        self._folder = folder = self._root / "simulator" / run
        self.log = folder / "log.txt"
        self.results = self._root / run / "server" / "results.json"
        self._job, self._workspace = folder / "job", folder / "workspace"
        self._rounds = {phase.name: phase.rounds for phase in experiment.phases}
        self._lines = [_NewLines(self._root / run / end / "log.jsonl") for end in ("server", *sites)]

    def run(self, threads: int, tell: Tell) -> None:
        """Run it to its end; whatever ends this call ends the simulator with it.

        Args:
            threads: How many sites work at once, 1 or more; the figures do not depend on it.
            tell: Told of each round and each site's answer as they come.

        Raises:
            SettingsError: No federation can run the settings, or the job's folder cannot be written.
            StateError: The run is held by another process, or it stopped, with the reason and where FLARE's log lies.
        """
        with folder_lock(self._folder, 0.0):
            self._write()
            self._run(threads, tell)

    def _write(self) -> None:
        write_job(self._job, job_files(self._row, "", tuple(self._sites), settings=self._settings), replace=True)
        places = self._folder / "sites"
        for site, own in self._sites.items():
            tracking = own.tracking.model_copy(update={"log": True})
            ours = own.model_copy(update={"state_root": self._root, "tracking": tracking})
            write_text(places / f"{site}.yaml", _text(ours.model_dump(mode="json", exclude_unset=True)))
        server: dict[str, Any] = {"state_root": str(self._root), "tracking": {"log": True}}
        weights = [str(own.weights_file) for own in self._sites.values() if own.weights_file is not None]
        if weights:  # one file on one machine; each end compares it with the job's SHA-256
            server["weights_file"] = weights[0]
        properties = {PROPERTY: {"site_file": str(places / f"{SITE_NAME}.yaml")}, SERVER_PROPERTY: server}
        scopes = {"scopes": [{"name": _SCOPE, "properties": properties}], "default_scope": _SCOPE}
        write_text(self._workspace / "local" / "privacy.json", _text(scopes))  # the simulator keeps this folder

    def _run(self, threads: int, tell: Tell) -> None:
        command = [sys.executable, "-m", SIMULATOR, str(self._job), "-w", str(self._workspace), "-t", str(threads)]
        with open(self.log, "wb") as log, simulator(command, stdout=log, stderr=subprocess.STDOUT) as process:
            code: int | None = None
            while code is None:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(_LOOK_S)
                for line, record in self._news():
                    tell(line, record)
        stopped = self._workspace / "server" / "simulate_job" / FOLDER / STOPPED
        if stopped.exists():
            raise StateError(f"{read_json(stopped).get('why')} All that FLARE and the sites said: {self.log}")
        if code or not self.results.exists():
            raise StateError(f"FLARE's simulator ended with code {code} before the run was done: {self.log} says why.")

    def _news(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        found = sorted((one for lines in self._lines for one in lines.read()), key=lambda one: str(one.get("time")))
        for one in found:
            for said in self._said(one):
                yield said, one

    def _said(self, line: Mapping[str, Any]) -> Iterator[str]:
        event, end, seconds = line.get("event"), line.get("end"), line.get("seconds")
        if event == "opened" and line.get("done"):
            yield f"the run goes on: {line['done']} of {line.get('steps')} steps are done"
        if "phase" not in line:
            return
        where = self._step(line)
        if event == "asked":
            yield f"{where}: {', '.join(line.get('sites', ()))} asked"
        elif event == "answered":
            yield f"{where}: {end} has answered, after {seconds} s"
        elif event == "failed":
            yield f"{where}: {end} has failed: {line.get('why')}"
        elif event == "closed":
            refused = "".join(f"; {site} does not count: {why}" for site, why in line.get("refused", {}).items())
            yield f"{where}: done in {seconds} s{refused}"
        elif event == "repeated":
            yield f"{where}: it is done again: {line.get('why')}"

    def _step(self, line: Mapping[str, Any]) -> str:
        phase, rounds = str(line["phase"]), self._rounds.get(str(line["phase"]), 1)
        return f"{phase}, round {line['round'] + 1} of {rounds}" if rounds > 1 else phase


def require_one_word(folder: Path, option: str) -> None:
    """Refuse to start a simulator whose sites could not start, before any process has started.

    FLARE writes the command of each site as one line, with nothing quoted, and takes it apart as a shell does.

    Args:
        folder: Where FLARE's workspace lies, or is to lie.
        option: What names it.

    Raises:
        SettingsError: The path of the folder, of Python or of FLARE would not be one word of that line.
    """
    for path, mend in (
        (str(folder), f"name another folder ({option})"),
        (sys.executable, "install fedretina into an environment elsewhere"),
        (nvflare.__file__, "install fedretina into an environment elsewhere"),
    ):
        try:
            whole = shlex.split(path, comments=True) == [path]
        except ValueError:  # a quote without its second
            whole = False
        if not whole:
            raise SettingsError(
                f"FLARE's simulator cannot start a site where a path has a space, a quote, a backslash or a #, as "
                f"{path!r} has: {mend}. `fedretina loop` runs there all the same."
            )


def require_policies(experiment: Experiment, sites: Mapping[str, SiteSettings]) -> None:
    """Refuse a trial that a site would refuse at its first order, before any process has started.

    Args:
        experiment: The run's settings.
        sites: Settings of each site.

    Raises:
        RefusedError: A site's policy lets a kind of tensor not pass that the run sends, or would spoil its sums; names
            all such sites.
        SettingsError: A site's policy changes numbers that leave encoded or encrypted.
    """
    # Here, since a recipe that is only exported starts without torch.
    from fedretina.exchange.partition import partition_of
    from fedretina.exchange.policy import require_kinds, require_numbers
    from fedretina.networks.build import build_on_meta

    net = build_on_meta(experiment.network, experiment.head_width or 2)
    refused: dict[str, list[str]] = {}
    for site, own in sites.items():
        sends = partition_of(experiment, net, experiment.sums is not None and own.he_keys is not None)
        try:
            require_numbers(own.own_policy, experiment.exchange.codec, sends)
            require_kinds(own.own_policy, sends.shared_kinds())
        except RefusedError as error:
            refused.setdefault(str(error), []).append(site)
    if refused:
        raise RefusedError(" ".join(f"{', '.join(named)}: {why}" for why, named in refused.items()))


def default_threads(sites: Sequence[str]) -> int:
    """How many sites work at once where nobody says: all, as far as the machine has cores for them."""
    return max(1, min(len(sites), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1))


class _NewLines:
    """What is appended to a file of JSON lines from now on; it need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with open(self._path, "rb") as handle:
            handle.seek(self._at)
            whole, end, _ = handle.read().rpartition(b"\n")  # a line that is being written is read next time
        self._at += len(whole) + len(end)
        return [json.loads(line) for line in whole.splitlines()]


@contextmanager
def simulator(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The simulator, which ends with the block, in a session of its own.

    Ctrl-C, SIGTERM and the end of the terminal then reach this process alone, where each raises KeyboardInterrupt, and
    so end simulator and sites too. Against SIGKILL nothing helps. A signal that is ignored (`nohup`) or that has a
    handler is left as it is, and so are all where the block is not in the main thread, which alone may set them.

    Args:
        command: What starts it.
        options: As for `subprocess.Popen`.

    Yields:
        The process.
    """
    main = threading.current_thread() is threading.main_thread()
    taken = [one for one in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(one) is signal.SIG_DFL]
    for one in taken:
        signal.signal(one, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, start_new_session=True, **options)
        try:
            yield process
        finally:
            _end(process)
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the simulator and the sites that it started, each of which has a session of its own."""
    if process.poll() is not None:
        return
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for one in started:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


def _text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"
