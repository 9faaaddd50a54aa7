"""A provisioned federation on loopback: FLARE's own provisioning and start scripts, our hardening, real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from standing import CEILING_S, standing

from fedretina.cli import main
from fedretina.kit.audit import AuditLog
from ports import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LEAD = "lead@consortium.example"
SERVER_SIDE = Path(__file__).parent / "server_side"
PROJECT_ADMIN = "admin@consortium.example"
MEMBER = "member@hospital-2.example"
ORG_ADMIN = "it@hospital-1.example"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
"""Of Debian's package faketime."""
WITH_CARDS = "site-2"
"""The site whose machine says that it has two GPUs."""
ANSWER_S, CONNECT_S = 60.0, 120.0
"""How long an admin waits for an answer, and for a connection; and the server for a site that a job is deployed to."""

_NVIDIA_SMI = """#!/bin/sh
case "$1" in
  *index) printf 'index\\n0\\n1\\n';;
  *) printf 'memory [MiB]\\n24576 MiB\\n24576 MiB\\n';;
esac
"""
"""As FLARE asks the driver's program, which this machine may not have; nothing else of a GPU is made up."""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = CEILING_S, look_s: float = 0.2) -> Any:
    """Wait until a condition is true and return it; looked at so often, which is not free."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(look_s)


def environment(home: Path, *first: Path, **more: str) -> dict[str, str]:
    """What FLARE's processes see: no setting of the developer's shell, this interpreter, this package.

    Args:
        home: Where FLARE's command line keeps its registry.
        first: Folders that Python looks in before all others.
        more: Further variables.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FEDRETINA_", "NVFL"))}
    paths = [*map(str, first), str(REPOSITORY / "custom"), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{BIN}{os.pathsep}{kept.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(paths),
        **more,
    }


def clock(by: str) -> dict[str, str]:
    """What sets the clock of a process, of its threads and of its libraries; where libfaketime is (`FAKETIME`).

    Its workaround for the monotonic clock of old C libraries is off: threads that wait for each other would wait twice
    as long, and a job's process of FLARE take twice the CPU.
    """
    fixed = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
    return {"LD_PRELOAD": str(FAKETIME), "FAKETIME": by, **fixed}


def nvflare(home: Path, *words: object) -> str:
    """Run FLARE's command line; return what it said."""
    command = [str(BIN / "nvflare"), *map(str, words)]
    done = subprocess.run(command, cwd=home, env=environment(home), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def fedretina(*words: object, code: int = 0) -> str:
    """Run a command of this package; return what it said."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.output


def loopback_project(folder: Path, port: int, **builder: Any) -> Path:
    """The committed project file, with its server on this machine and on another port."""
    words = yaml.safe_load((REPOSITORY / "provisioning" / "project.yml").read_text())
    server = words["participants"][0]
    server |= {"default_host": "localhost", "host_names": ["localhost", "127.0.0.1"], "fed_learn_port": port}
    path = folder / "project.yml"
    path.write_text(yaml.safe_dump(words))
    return path


class Participant:
    """A kit that runs, by its own start script, in a session of its own."""

    def __init__(self, kit: Path, home: Path, **more: str) -> None:
        self.kit = kit
        self.log = kit / "console.txt"
        with open(self.log, "wb") as handle:
            # `--once` leaves out the watchdog and its pauses; the rest of the script is as a hospital runs it.
            self.process = subprocess.Popen(
                ["bash", str(kit / "startup" / "sub_start.sh"), "--once"],
                cwd=kit,
                env=environment(
                    home,
                    *([SERVER_SIDE] if more else []),
                    OPENSSL_CONF=str(kit / "local" / "openssl.cnf"),  # as the systemd units and the container set it
                    **more,
                ),
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        """What it printed, its jobs included."""
        return self.log.read_text(errors="replace")

    def wait_until(self, said: str, seconds: float = CEILING_S) -> None:
        """Wait until it has printed something."""

        def seen() -> bool:
            assert self.process.poll() is None or said in self.text(), self.text()[-3000:]
            return said in self.text()

        try:
            wait_for(seen, f"{self.kit.name} says {said!r}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{standing(self.processes(), [self.log], self.kit)}") from None

    def processes(self) -> list[psutil.Process]:
        """It and all that it started: FLARE's jobs run in sessions of their own and name the kit's folder."""
        found = psutil.process_iter(["cmdline"])
        return [process for process in found if str(self.kit) in (process.info["cmdline"] or [])]

    def stop(self) -> None:
        """End it and all that it started."""
        for pid in {process.pid for process in self.processes()} | {self.process.pid}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def processes_of(kit: Path, job: str) -> list[int]:
    """Processes of a participant that work on a job."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(kit) in words and job in words:
            found.append(process.pid)
    return found


class Federation:
    """Kits in a folder, the participants that run, and sessions of admins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.port = free_port()
        self.workspace = folder / "workspace"
        self.running: dict[str, Participant] = {}
        self.ended: dict[str, dict[str, Any]] = {}  # what the server said of jobs at their end, by name
        self.project = loopback_project(folder, self.port)
        self._driver = folder / "driver"
        self._driver.mkdir()
        (self._driver / "nvidia-smi").write_text(_NVIDIA_SMI)
        (self._driver / "nvidia-smi").chmod(0o755)
        self.proxy: Any = None  # the squid that site-2 is behind, where there is one (conftest.py)

    @property
    def state(self) -> Path:
        """Where provisioning keeps its keys."""
        return self.workspace / "fedretina" / "state"

    def provision(self, *words: object) -> None:
        """Run FLARE's central provisioning."""
        nvflare(self.home, "provision", "-p", self.project, "-w", self.workspace, *words)

    def kit(self, name: str, generation: int = 0) -> Path:
        """A participant's kit."""
        return self.workspace / "fedretina" / f"prod_{generation:02d}" / name

    @property
    def storage(self) -> Path:
        """Where the server keeps jobs and runs."""
        return self.kit("server") / "storage"

    def hospital(self, site: str) -> Path:
        """Where a site's images, site file and state lie."""
        return self.folder / "hospitals" / site

    def audited(self, name: str, event: str) -> list[dict[str, Any]]:
        """The events of a name in the audit log of a participant, whose chain must be whole."""
        found = AuditLog(self.kit(name)).verify()
        assert found.faults == ()
        return [dict(line) for line in found.events if line["event"] == event]

    def start(self, name: str, kit: Path | None = None, **more: str) -> Participant:
        """Start a kit."""
        if name == WITH_CARDS:
            more["PATH"] = os.pathsep.join([str(self._driver), str(BIN), os.environ.get("PATH", "")])
        self.running[name] = Participant(kit or self.kit(name), self.home, **more)
        return self.running[name]

    def stop(self, *names: str) -> None:
        """Stop some participants, or all."""
        for name in names or tuple(self.running):
            self.running.pop(name).stop()

    @contextmanager
    def session(self, user: str, kit: Path | None = None) -> Iterator[Any]:
        """An admin's session over the FLARE API, which gives up after 5 s of its own where nobody says otherwise."""
        from nvflare.fuel.flare_api.flare_api import Session

        session = Session(user, str(kit or self.kit(user)))
        session.api.authenticate_msg_timeout = session.api.file_download_progress_timeout = ANSWER_S
        session.set_timeout(ANSWER_S)
        try:
            session.try_connect(CONNECT_S)
            yield session
        finally:
            session.close()


def distributed_kit(home: Path, name: str, port: int) -> Path:
    """A site's kit of another consortium, made the distributed way: a key of its own, a request, an approval."""
    samples = REPOSITORY / "provisioning" / "distributed"
    profile = yaml.safe_load((samples / "profile.yml").read_text())
    profile["server"] = {"host": "localhost", "fed_learn_port": port}
    site = yaml.safe_load((samples / "site-1.yml").read_text())
    site["participants"][0]["name"] = name
    for path, words in ((home / "profile.yml", profile), (home / "site.yml", site)):
        path.write_text(yaml.safe_dump(words))
    nvflare(home, "cert", "init", "--profile", "profile.yml", "-o", "ca")
    nvflare(home, "cert", "request", "-p", "site.yml", "--out", "request")
    request = f"request/{name}.request.zip"
    signed = f"{name}.signed.zip"
    nvflare(home, "cert", "approve", request, "-c", "ca", "--profile", "profile.yml", "--out", signed)
    root = x509.load_pem_x509_certificate((home / "ca" / "rootCA.pem").read_bytes())
    fingerprint = root.fingerprint(hashes.SHA256()).hex()
    nvflare(home, "package", signed, "--request-dir", "request", "--fingerprint", fingerprint, "-w", "kits")
    return home / "kits" / "fedretina" / "prod_00" / name


def point_to(kit: Path, port: int, host: str = "") -> None:
    """Let a kit know its server under another port, and another host if one is given."""
    for name in ("fed_server.json", "fed_client.json", "fed_admin.json"):
        path = kit / "startup" / name
        if path.exists():
            words = json.loads(path.read_text())
            for server in words.get("servers", []):
                known = server["service"]["target"].partition(":")[0]
                server["service"]["target"] = f"{host or known}:{port}"
                if "admin_port" in server:
                    server["admin_port"] = port
            if "admin" in words:
                words["admin"]["port"] = port
            path.write_text(json.dumps(words))


def be_patient(server: Path, admin: Path) -> None:
    """Let a server's kit wait longer for sites, and an admin's for the server; `ProdEnv` has no word for it."""
    for path, part, words in (
        (server / "startup" / "fed_server.json", lambda known: known["servers"][0], {"admin_timeout": ANSWER_S}),
        (admin / "startup" / "fed_admin.json", lambda known: known["admin"], {"authenticate_msg_timeout": ANSWER_S}),
    ):
        known = json.loads(path.read_text())
        part(known).update(words)
        path.write_text(json.dumps(known))


def copy_kit(kit: Path, folder: Path) -> Path:
    """Copy a kit with its rights."""
    return Path(shutil.copytree(kit, folder))


def ended(session: Any, job: str, seconds: float = CEILING_S) -> dict[str, Any]:
    """Wait until a job has ended; return what the server says of it."""
    from nvflare.fuel.flare_api.api_spec import NoConnection

    def finished() -> dict[str, Any] | None:
        try:
            meta: dict[str, Any] = session.get_job_meta(job)
        except NoConnection:  # a server that is short of CPU answers late
            return None
        return meta if str(meta["status"]).startswith(("FINISHED", "ABANDONED")) else None

    return dict(wait_for(finished, f"job {job} ends", seconds, look_s=0.5))


def files_below(*folders: Path, without: Sequence[str] = ()) -> Iterator[Path]:
    """All files below some folders but those of some names."""
    for folder in folders:
        yield from (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in without)
