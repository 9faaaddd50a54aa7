"""A federation on this machine: kits prepared by FLARE's own `nvflare poc prepare`, started, ready, stopped."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from fedretina.errors import AdminError, FedretinaError, SettingsError, UnreachableError
from fedretina.flare.admin_jobs import all_jobs
from fedretina.flare.admin_session import AdminSession
from fedretina.flare.handover import FOLDER, HANDOVER
from fedretina.locks import folder_lock
from fedretina.storage import require_name
from poc.processes import belonging, end_all, start_kit
from poc.project import ADMIN, NAME, SERVER, write_project

_LOOPBACK = "127.0.0.1"
_LAST_LINES = 15
_DEPLOY_S = 60.0


class LocalFederation:
    """A server, sites and an admin under one folder. Everything that they write lies in it.

    Args:
        folder: Its folder; what a former federation left in `flare` is replaced, `state` is kept.
        sites: Names of the sites.
        port: The server's port; 0 takes a free one.
        say: Is told what happens, a line each.
        hand_over: Have the jobs' processes hand tensors to one another as files instead of sending them.
    """

    def __init__(
        self,
        folder: Path,
        sites: Sequence[str],
        port: int = 0,
        say: Callable[[str], None] = lambda line: None,
        hand_over: bool = False,
    ) -> None:
        if not sites:
            raise SettingsError("a federation needs a site: name at least one.")
        self.folder = folder.resolve()
        self.sites = tuple(require_name(site, "site") for site in sites)
        self.flare = self.folder / "flare"
        self.state = self.folder / "state"
        self.port = port
        self._say, self._hand_over = say, hand_over
        self._held = ExitStack()
        self._owns = False  # another rehearsal may hold the folder, and its processes are not ours to end
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def admin_kit(self) -> Path:
        """The admin's startup kit."""
        return self.kit(ADMIN)

    def kit(self, name: str) -> Path:
        """The startup kit of a participant; the server's name is `localhost`."""
        return self.flare / NAME / "prod_00" / name

    def session(self) -> AdminSession:
        """A session of the admin; connect it by a `with` statement."""
        return AdminSession(self.admin_kit)

    def prepare(self, site_file: str | None = None) -> None:
        """Write the kits.

        Args:
            site_file: Path of the sites' own settings, `{SITE_NAME}` in it stands for a site's name. A site whose
                file is missing has no data of its own.

        Raises:
            FedretinaError: The folder is in use or somebody else's, the port is taken, or FLARE fails.
        """
        if self.flare.exists() and not (self.flare / "project.yml").exists():
            raise SettingsError(f"{self.flare} is there and no rehearsal wrote it: choose another folder.")
        self._held.enter_context(folder_lock(self.folder, 0.0))
        self._owns = True
        if left := end_all(self.flare):
            self._say(f"{left} processes of a rehearsal that was killed here are ended")
        self.port = _free_port(self.port)
        write_project(self.folder / "project.yml", self.sites, self.port)
        command = [sys.executable, "-m", "nvflare.cli", "poc", "prepare", "-i", "project.yml", "--force"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or not self.admin_kit.is_dir():
            raise AdminError(f"`nvflare poc prepare` failed:\n{done.stdout}{done.stderr}")
        self._be_patient()
        if site_file is not None:
            for site in self.sites:
                self._point_to_data(site, site_file)
        self._say(f"{len(self.sites)} sites and a server prepared in {self.folder}, at {SERVER}:{self.port}")

    def start(self, timeout_s: float = 120.0) -> None:
        """Start server and sites, and wait until all are connected.

        Raises:
            FedretinaError: A process ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        self.start_one(SERVER)
        while not self._listens():
            self._wait(deadline, "the server does not listen")
        for site in self.sites:
            self.start_one(site)
        self.wait_for_sites(deadline - time.monotonic())
        self._say(f"the server and {len(self.sites)} sites are up and connected by mutual TLS")

    def wait_for_sites(self, timeout_s: float = 120.0) -> None:
        """Wait until all sites are connected.

        Raises:
            FedretinaError: A process ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        with self._connected(deadline) as session:
            while missing := set(self.sites) - set(session.federation().sites):
                self._wait(deadline, f"not connected: {', '.join(sorted(missing))}")

    def start_one(self, name: str) -> None:
        """Start one participant."""
        self._started[name] = start_kit(self.kit(name), self.environment())

    def kill_one(self, name: str) -> None:
        """Kill one participant's process, as a power cut would; processes of its jobs end by themselves."""
        process = self._started.pop(name)
        process.kill()
        process.wait()

    def signal_one(self, name: str, number: int) -> None:
        """Send one participant's process a signal, such as SIGSTOP; processes of its jobs do not get it."""
        self._started[name].send_signal(number)

    def stop(self, at_once: bool = False) -> None:
        """End everything: by FLARE's own shutdown where its server answers, then by process id.

        Does nothing to a folder that `prepare` could not take.

        Args:
            at_once: Leave FLARE's shutdown out.
        """
        if not self._owns:
            return
        try:
            if not at_once and self._started and belonging(self.flare):
                self._shut_down()
        finally:
            end_all(self.flare)
            for process in self._started.values():
                process.wait()
            self._started, self._owns = {}, False
            self._held.close()

    def environment(self) -> dict[str, str]:
        """The environment of every process here: nothing of the caller's FLARE or fedretina settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FEDRETINA_", "NVFL"))}
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        return {
            "OMP_NUM_THREADS": "1",  # a dozen processes share the machine; training's threads are a setting of the job
            "OMP_WAIT_POLICY": "passive",  # which do not spin on cores that other sites need while they wait
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "HOME": str(home),
            "NVFLARE_POC_WORKSPACE": str(self.flare),
            "FEDRETINA_STATE_ROOT": str(self.state),
            **({HANDOVER: str(self.state / FOLDER)} if self._hand_over else {}),
        }

    def _be_patient(self) -> None:
        """Let the server wait longer than 10 s until a site has a job: all share this machine's cores.

        FLARE leaves a site that takes longer out of the job, or does not run it.
        """
        path = self.kit(SERVER) / "startup" / "fed_server.json"
        words = json.loads(path.read_text(encoding="utf-8"))
        words["servers"][0]["admin_timeout"] = _DEPLOY_S
        path.write_text(json.dumps(words, indent=2) + "\n", encoding="utf-8")

    def _point_to_data(self, site: str, site_file: str) -> None:
        path = Path(site_file.replace("{SITE_NAME}", site)).resolve()
        if not path.is_file():
            self._say(f"{site} has no file {path}: it has no data of its own")
            return
        scope = {"name": NAME, "properties": {"fedretina": {"site_file": str(path)}}}
        words = {"scopes": [scope], "default_scope": NAME}
        (self.kit(site) / "local" / "privacy.json").write_text(json.dumps(words, indent=2) + "\n", encoding="utf-8")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((_LOOPBACK, self.port)) == 0

    def _connected(self, deadline: float) -> AdminSession:
        while True:
            session = self.session()
            try:
                session.connect()
            except UnreachableError as error:
                self._wait(deadline, str(error))
            else:
                return session

    def _wait(self, deadline: float, why: str) -> None:
        for name, process in self._started.items():
            if process.poll() is not None:
                lines = (self.kit(name) / "console.txt").read_text(errors="replace").splitlines()[-_LAST_LINES:]
                raise AdminError("\n".join([f"{name} ended with code {process.returncode}; its last lines:", *lines]))
        if time.monotonic() > deadline:
            raise AdminError(f"the federation was not ready in time: {why}. See {self.flare}/**/console.txt.")
        time.sleep(0.3)

    def _shut_down(self, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        try:
            with self.session() as session:
                for job in all_jobs(session):
                    if not job.ended:
                        session.abort(job.id)
                session.shut_down()
        except FedretinaError as error:
            self._say(f"FLARE did not shut down by itself, so its processes are ended: {error}")
            return
        while belonging(self.flare) and time.monotonic() < deadline:
            time.sleep(0.3)


def _free_port(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError as error:
            raise SettingsError(f"port {port} is taken: name another, or 0 for any that is free.") from error
        return int(probe.getsockname()[1])
