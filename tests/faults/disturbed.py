"""A federation of real processes that can be hurt: killed, frozen, switched off, its disks filled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import yaml
from click.testing import CliRunner
from poc.federation import LocalFederation
from poc.processes import belonging
from poc.project import SERVER
from simulation import SMALL, write_job
from standing import CEILING_S, standing

from fedretina.cli import main
from ports import free_port

SITES = ("site-1", "site-2")
GATE = "GATED_TWEU_GATE"  # as tests/flare/parts/gated_tweu.py
HAS_TENSORBOARD = find_spec("tensorboard") is not None
BEAT_S, DEAD_S = 2, 40
"""FLARE's heartbeats and the silence after which it takes a site for dead, shortened from 10 and 600 seconds.

Not shorter: a site may be without a core for so long on a busy machine, and is not to be taken for dead then.
"""


class Disturbed:
    """A server and two sites with short heartbeats."""

    def __init__(self, folder: Path) -> None:
        self.local = LocalFederation(folder, SITES, free_port())
        self.disks = {name: folder / "disks" / name for name in (SERVER, "site-1")}
        self._mounted: list[Path] = []
        self.folder = folder

    def start(self) -> None:
        """Prepare the kits, mount the small disks where that is allowed, start all.

        A disk has room for the runs of all tests of a session: some 15 MB for each step that the server keeps.
        """
        os.environ[GATE] = str(self.folder / "gate")
        for disk in self.disks.values():
            disk.mkdir(parents=True)
            words = ["mount", "-t", "tmpfs", "-o", "size=600m", "tmpfs", str(disk)]
            if subprocess.run(words, capture_output=True, check=False).returncode == 0:
                self._mounted.append(disk)
        for site in SITES:
            self._write_site_file(site)
        self.local.prepare(str(self.folder / "{SITE_NAME}.yaml"))
        tracking = {"log": True, "tensorboard": HAS_TENSORBOARD}
        server = {"state_root": str(self.disks[SERVER]), "tracking": tracking}
        scope = {"name": "fedretina", "properties": {"fedretina_server": server}}
        kit = self.local.kit(SERVER)
        (kit / "local" / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "fedretina"}))
        startup = json.loads((kit / "startup" / "fed_server.json").read_text())
        startup["servers"][0]["heart_beat_timeout"] = DEAD_S
        (kit / "startup" / "fed_server.json").write_text(json.dumps(startup))
        for site in SITES:
            script = self.local.kit(site) / "startup" / "sub_start.sh"
            script.write_text(
                script.read_text().replace("secure_train=true", f"secure_train=true heart_beat_interval={BEAT_S}")
            )
        self.local.start(CEILING_S)

    def let(self, rounds: int | None = None) -> None:
        """Let so many rounds pass, all by default: the next one is begun, and held at all sites in its first batch.

        What is to be hurt in the middle of a round is hurt while it is held.
        """
        gate = Path(os.environ[GATE])
        if rounds is None:
            gate.unlink(missing_ok=True)
            return
        gate.with_suffix(".new").write_text(str(rounds))
        gate.with_suffix(".new").replace(gate)

    def train_in_a_child(self, child: bool) -> None:
        """Let the first site train in child processes from its next job on, or in its own; each child imports torch."""
        self._write_site_file("site-1", trainer="child" if child else "inline")

    def _write_site_file(self, site: str, **more: str) -> None:
        words = {"state_root": str(self.disks[site])} if site in self.disks else {}
        text = yaml.safe_dump({**words, "tracking": {"log": True}, **more})
        (self.folder / f"{site}.yaml").write_text(text)

    def stop(self) -> None:
        """End everything and give the disks back."""
        for process in belonging(self.local.flare):
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self.local.stop(at_once=True)
        for disk in self._mounted:
            subprocess.run(["umount", "-l", str(disk)], check=False)

    # Runs

    def admin(self, *words: object, code: int = 0) -> Any:
        """One command with the admin's kit; what it printed as JSON."""
        arguments = [*map(str, words), "--kit", str(self.local.admin_kit), "--json"]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def submit(self, run: str, words: Mapping[str, Any], **controller: Any) -> str:
        """Submit a run; return its job."""
        job = write_job(self.folder / f"job-{run}", words, SITES)
        path = job / "app/config/config_fed_server.json"
        config = json.loads(path.read_text()) | {"dead_client_grace_period": 2.0, "dead_client_check_lead_time": 2.0}
        for workflow in config["workflows"]:
            workflow["args"].update(controller)
        path.write_text(json.dumps(config))
        return str(self.admin("submit", job, "--run", run, "--poc")[0]["job"])

    def ends(self, run: str, complete: bool) -> dict[str, Any]:
        """Wait for the end of a run's newest job; return what is said of it."""
        end: dict[str, Any] = self.admin("watch", "--run", run, "--timeout", int(CEILING_S), code=0 if complete else 1)[
            -1
        ]
        assert end["complete"] is complete, end
        return end

    def server_folder(self, run: str) -> Path:
        """The server's state of a run."""
        return self.disks[SERVER] / run / "server"

    def site_folder(self, run: str, site: str) -> Path:
        """A site's state of a run."""
        return self.disks.get(site, self.local.state) / run / site

    def done(self, run: str) -> int:
        """Steps that are durable at the server."""
        path = self.server_folder(run) / "run.json"
        return int(json.loads(path.read_text())["done"]) if path.exists() else -1

    def results(self, run: str) -> dict[str, Any]:
        """The stored results of a run, less its name."""
        found: dict[str, Any] = json.loads((self.server_folder(run) / "results.json").read_text())
        found.pop("run")
        return found

    def durable(self, run: str) -> dict[Path, bytes]:
        """All that counts of a run at this moment: finished rounds, and the sites' personal parts of accepted ones."""
        held = {path: path.read_bytes() for path in self.server_folder(run).glob("*-0*.json")}
        for site in SITES:
            folder = self.site_folder(run, site)
            if (folder / "state.json").exists():
                counted = json.loads((folder / "state.json").read_text())["counted"]
                path = folder / f"train-{max(counted):04d}.safetensors" if counted else folder / "none"
                held |= {path: path.read_bytes()} if path.exists() else {}
        return held

    def kept(self, run: str, before: Mapping[Path, bytes]) -> bool:
        """Whether all that counted is there; a personal part may only have been followed by a later one."""
        now = self.durable(run)
        followed = {path.parent for path in now if path.suffix == ".safetensors"}
        return all(
            path.read_bytes() == data if path.exists() else path.suffix == ".safetensors" and path.parent in followed
            for path, data in before.items()
        )

    def lines(self, folder: Path) -> list[dict[str, Any]]:
        """The log lines of one end; they hold no path."""
        text = (folder / "log.jsonl").read_text()
        assert "/" not in text, text
        return [json.loads(line) for line in text.splitlines()]

    # Processes

    def said(self, name: str) -> str:
        """What a participant printed."""
        return (self.local.kit(name) / "console.txt").read_text(errors="replace")

    def processes(self, name: str) -> list[psutil.Process]:
        """All of a participant's processes but the children that its trainer starts."""
        kit = str(self.local.kit(name))
        found = belonging(self.local.flare)
        return [process for process in found if any(word.split("/startup")[0] == kit for word in process.cmdline())]

    def job_process(self, name: str, job: str) -> psutil.Process | None:
        """The process that runs a job at a participant."""
        runner = "server.runner_process" if name == SERVER else "client.worker_process"
        for process in self.processes(name):
            words = process.cmdline()
            if any(runner in word for word in words) and job in words:
                return process
        return None

    def child(self, job: str) -> psutil.Process | None:
        """The child process in which site-1 trains."""
        process = self.job_process("site-1", job)
        children = process.children() if process else []
        return next((child for child in children if "fedretina.local.trainer_process" in child.cmdline()), None)

    def switch_off(self, name: str) -> None:
        """Kill all of a participant's processes at once, as a power cut would."""
        found = self.processes(name)
        # First they stand still: one that saw another's end would tell the server so, which then ends the job.
        for end in (psutil.Process.suspend, psutil.Process.kill):
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    end(process)
        self.local.kill_one(name)

    def switch_on(self, name: str) -> None:
        """Start a participant again."""
        self.local.start_one(name)

    @contextmanager
    def full(self, name: str) -> Iterator[None]:
        """Keep a participant's disk full to its last page: what is given back, such as a round's updates, goes too.

        All files that are there are held open, so that removing one frees nothing: a server that is quicker than the
        filler would otherwise write its next small steps into what it has just removed.
        """
        filler, over, held = self.disks[name] / "filler", Event(), ExitStack()

        def fill(handle: FileIO) -> None:
            while not over.wait(0.02):
                with suppress(OSError):
                    while True:
                        handle.write(bytes(2**12))

        with open(filler, "wb", buffering=0) as handle:
            with suppress(OSError):
                while True:
                    handle.write(bytes(2**20))
            for path in [path for path in self.disks[name].rglob("*") if path.is_file() and path != filler]:
                with suppress(FileNotFoundError):
                    held.enter_context(path.open("rb"))
            thread = Thread(target=fill, args=(handle,))
            thread.start()
            try:
                self.wait_for(lambda: shutil.disk_usage(self.disks[name]).free == 0, "a full disk")
                yield
            finally:
                over.set()
                thread.join()
                held.close()
                filler.unlink()

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = CEILING_S) -> Any:
        """Wait until a condition is true and return it.

        Raises:
            AssertionError: It never was: what was waited for, where each process stands, and its stacks.
        """
        deadline = time.monotonic() + seconds
        while True:
            with suppress(psutil.NoSuchProcess):
                if found := condition():
                    return found
            if time.monotonic() > deadline:
                logs = [self.local.kit(name) / "console.txt" for name in (SERVER, *SITES)]
                said = standing(belonging(self.local.flare), logs, self.folder)
                raise AssertionError(f"{what}: not within {seconds:.0f} s\n{said}")
            time.sleep(0.1)  # a look at all processes is not free

    @property
    def has_disks(self) -> bool:
        """Whether the small disks could be mounted."""
        return len(self._mounted) == len(self.disks)


def undisturbed(root: Path, words: Mapping[str, Any], refused: Sequence[Mapping[str, str]] = ()) -> dict[str, Any]:
    """Results of the core alone over the same sites, less the run's name.

    Args:
        root: Where it may write.
        words: The experiment.
        refused: By step, the sites that have no part in it, and why.
    """
    from fedretina.aggregation.coordinator import Coordinator
    from fedretina.local.child_trainer import SiteRecipe
    from fedretina.settings.experiment import Experiment
    from fedretina.settings.site import SiteDataSettings
    from fedretina.storage import read_json

    experiment = Experiment.resolve(words)
    data = SiteDataSettings(phantom_images=experiment.phantom_images)
    coordinator = Coordinator(experiment, "oracle", root / "server")
    hosts = {
        site: SiteRecipe(
            experiment=experiment, site=site, data=data, folder=root / site, cache=root / "cache" / site
        ).build()
        for site in SITES
    }
    while coordinator.done < len(coordinator.plan):
        missing = refused[coordinator.done] if coordinator.done < len(refused) else {}
        coordinator.begin(hosts)
        for site in coordinator.asked:
            if site in missing:
                coordinator.refuse(site, missing[site])
            else:
                coordinator.accept(site, hosts[site].handle(coordinator.order(site), coordinator.down(site)))
        coordinator.close()
    found = read_json(root / "server" / "results.json")
    found.pop("run")
    return found


def rounds(number: int, **more: Any) -> dict[str, Any]:
    """A small experiment of so many rounds, which needs all sites unless another quorum is given."""
    phases = [{"name": "train", "rounds": number}]
    return {**SMALL, "objective": {"name": "gated_tweu"}, "phases": phases, "quorum": len(SITES), **more}


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    """One curve of TensorBoard's event files in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]
