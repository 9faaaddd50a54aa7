"""How FLARE's simulator starts its sites: forked from a process that did the imports, and each in one process only.

FLARE 2.9's simulator starts a Python of its own for each site, and with fewer threads than sites (its default is one)
for each *task* of each site. Nearly all of the three seconds of such a start are imports, of torch and of FLARE. Here
they are done once, in a process that then only forks: a site is a copy of it, runs FLARE's own worker, and ends as any
process does.

Nothing of this acts outside the simulator, where each site is a machine of its own; nor where forking a process that
has loaded torch is not safe (any system but Linux). Where the fork server cannot start, or dies, the simulator starts
its sites as it always did.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

_log = logging.getLogger(__name__)

_WORKER = "nvflare.private.fed.app.simulator.simulator_worker"
# What all sites need: FLARE's worker, the job's executor, the packages of the encoders, and what a run's end is fitted
# with.
_LOADED = (_WORKER, "fedretina.flare.executor", "timm.models.efficientnet", "scipy.optimize")
# What only the report at the end needs: imported while the first sites compute.
_LOADED_LATER = ("matplotlib.figure", "matplotlib.backends.backend_svg", "jinja2")
_STREAMS = "nvflare.fuel.f3.streaming.stream_utils"
_GREETING = "nvflare.private.fed.client.client_runner"
_GREETS_S = 0.5
"""How long FLARE sleeps before a site greets the server."""
_REACHES_S = 120.0
"""How long a site may take to reach the server. FLARE gives it ten seconds, and then it is lost for the whole run."""
_LOOK_S = 0.02


class ForkServer:
    """Starts sites of a simulation by forking, in place of `subprocess.Popen`.

    It may be called by all threads of the simulator; the process behind it is started by the first call of `start`,
    and ends when this process does.

    Args:
        at_once: Sites that compute at the same time. Where they have fewer than two cores each, threads of torch sleep
            while they wait for one another (`OMP_WAIT_POLICY=passive`, unless the environment says otherwise): else
            they spin on cores that the others need, and five sites on two cores take ten times as long.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._lock = threading.Lock()
        self._ours: Connection | None = None
        self._calm = at_once > 1 and 2 * at_once > (os.cpu_count() or 1)

    def start(self) -> None:
        """Start the process that does the imports; it goes on doing them while this one works."""
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            # The library of threads reads it once, when torch is imported: so here, and not for each fork.
            calm = {"OMP_WAIT_POLICY": "passive"} if self._calm else {}
            subprocess.Popen(command, pass_fds=[theirs.fileno()], env={**calm, **os.environ})
        self._ours = ours

    def ask(self, *what: Any) -> Any:
        """One question and its answer.

        Raises:
            OSError: The process is not there any more, or it could not do what was asked.
        """
        with self._lock:
            if self._ours is None:
                raise ConnectionError("the fork server has not been started")
            try:
                self._ours.send(what)
                answer = self._ours.recv()
            except EOFError as error:
                raise ConnectionError("the fork server has ended") from error
        if isinstance(answer, OSError):
            raise answer
        return answer

    def popen(
        self,
        command: Sequence[str],
        *,
        shell: bool = False,
        preexec_fn: Callable[[], Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes] | Forked:
        """What the simulator calls as `subprocess.Popen`: forks a site's worker, starts anything else as ever."""
        if command[:3] == [sys.executable, "-m", _WORKER] and preexec_fn is os.setsid and env is not None:
            try:
                return Forked(self, self.ask("start", command[3:], dict(env)))
            except OSError as error:
                _log.warning("%s: this site is started with imports of its own.", error)
        return subprocess.Popen(command, shell=shell, start_new_session=preexec_fn is not None, env=env)


class Forked:
    """A forked process, with as much of the face of `subprocess.Popen` as the simulator uses.

    Attributes:
        pid: Its process id.
        returncode: As `subprocess.Popen`; None while it runs.
    """

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """How it ended: its exit status, less than zero for a signal, None while it runs."""
        if self.returncode is None:
            try:
                self.returncode = self._server.ask("poll", self.pid)
            except OSError:
                # Nobody can say any more how it ended, but whether it did.
                if not os.path.exists(f"/proc/{self.pid}"):
                    self.returncode = -9
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Args:
            timeout: Seconds; forever by default.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_LOOK_S)
        return status

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal("terminate")

    def kill(self) -> None:
        """End it."""
        self._signal("kill")

    def _signal(self, which: str) -> None:
        # By way of its parent, which alone knows that the number is still this process's.
        if self.poll() is None:
            self._server.ask(which, self.pid)


def share_imports(at_once: int) -> None:
    """Let FLARE's simulator, which this process is, fork its sites from now on.

    Args:
        at_once: Sites that it runs at the same time.

    FLARE offers no place for this: its runner's name `subprocess` is set to an object with the two parts of that
    module which it uses.
    """
    from nvflare.private.fed.app.simulator import simulator_runner  # not at the top: this file is also what forks

    if simulator_runner.subprocess is not subprocess or sys.platform != "linux":
        return
    server = ForkServer(at_once)
    server.start()
    vars(simulator_runner)["subprocess"] = SimpleNamespace(Popen=server.popen, TimeoutExpired=subprocess.TimeoutExpired)


def one_process_per_site(gone: Callable[[str], None]) -> None:
    """Let FLARE's simulator, which this process is, never start a site that runs already, and tell when one has gone.

    With fewer threads than sites, two of its threads that end a task at the same moment may both pick the same site
    next: a picked site is marked as running only a second later. Two processes then do one task under one name; the
    server loses one's connection, or its monitor of tasks dies of the answer that comes twice, and the run waits for
    ever. So a thread waits here until the site that it has picked runs nowhere else. Each thread also gets a
    dictionary of its own for the site's name, which FLARE shares between them until it is sent.

    Nor does the simulator tell its server of a site whose process has died, or never came up, for which the server then
    waits as long as for one that works.

    Args:
        gone: Told the name of a site that does no more tasks, at the end of every run too.
    """
    from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner  # as above

    flares = SimulatorClientRunner.do_one_task
    if flares.__module__ == __name__:
        return
    running: dict[str, threading.Lock] = {}

    def do_one_task(runner: Any, client: Any, *others: Any, **named: Any) -> Any:
        own = copy(runner)
        own.build_ctx = dict(runner.build_ctx)
        own.get_next_run_client = runner.get_next_run_client  # it counts on, for all threads
        ended = True
        try:
            with running.setdefault(client.client_name, threading.Lock()):
                ended, *rest = flares(own, client, *others, **named)
                return ended, *rest
        finally:
            if ended:
                gone(client.client_name)

    SimulatorClientRunner.do_one_task = do_one_task


def wait_briefly() -> None:
    """Let FLARE's simulator, which this process is, look often for what it waits for; after `one_process_per_site`.

    For each task of each site it sleeps one second before it begins, and one more because the port of the site's new
    process is not open at once: twice as long as a small task takes. With several threads the first second stays,
    since a thread would else start one process after the other for sites that have nothing to do yet.
    """
    from nvflare.private.fed.app.simulator import simulator_runner  # as above

    runner_class = simulator_runner.SimulatorClientRunner
    flares = runner_class.do_one_task
    if simulator_runner.time is not time:
        return
    brisk = threading.local()

    def do_one_task(runner: Any, client: Any, num_of_threads: int, *others: Any, **named: Any) -> Any:
        brisk.now = True
        try:
            return flares(runner, client, num_of_threads, *others, **named)
        finally:
            brisk.now = num_of_threads == 1

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, _LOOK_S) if getattr(brisk, "now", False) else seconds)

    vars(simulator_runner)["time"] = SimpleNamespace(time=time.time, sleep=sleep)
    runner_class.do_one_task = do_one_task


def main() -> None:
    """Do the imports, then fork a site whenever the simulator asks, until it has gone."""
    theirs = Connection(int(sys.argv[1]))
    gc.disable()  # what is imported stays, and looking through it for garbage takes a seventh of the time
    for module in _LOADED:
        import_module(module)
    gc.collect()
    gc.freeze()  # else the first collection in each site would touch, and so copy, all that it shares
    gc.enable()
    later = list(_LOADED_LATER)
    while True:
        try:
            what, about, *more = theirs.recv()
        except EOFError:
            os._exit(0)  # there is nothing to flush, and Triton would print pages about what is still in memory
        answer: int | OSError | None = None
        try:
            if what == "start":
                answer = os.fork()
            elif what == "poll":
                if later:  # somebody waits for a site, so this process has nothing else to do
                    import_module(later.pop(0))
                    gc.freeze()
                pid, status = os.waitpid(about, os.WNOHANG)
                answer = os.waitstatus_to_exitcode(status) if pid else None
            else:
                os.kill(about, signal.SIGTERM if what == "terminate" else signal.SIGKILL)
        except OSError as error:
            answer = error
        if answer == 0 and what == "start":
            theirs.close()
            _become(about, *more)
            return
        theirs.send(answer)


def _become(arguments: list[str], environment: Mapping[str, str]) -> None:
    """Be the worker of a site, as if started with these arguments in this environment."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[1:1] = paths
    with suppress(OSError):
        # What `top` shows; the command line is that of the process it is a copy of.
        Path("/proc/self/comm").write_text(arguments[arguments.index("--client") + 1])
    np.random.seed()  # else all sites would draw alike from NumPy's old generator
    # FLARE draws at import the number from which a process counts its streams; the server takes two streams of one
    # number for one.
    vars(import_module(_STREAMS))["sid_base"] = time.time_ns() // 1000 + secrets.randbelow(1_000_000)
    # A site sleeps before it greets the server, which in the simulator has been there for long.
    vars(import_module(_GREETING))["time"] = SimpleNamespace(
        time=time.time, sleep=lambda seconds: time.sleep(_LOOK_S if seconds == _GREETS_S else seconds)
    )
    sys.argv[1:] = arguments
    worker = import_module(_WORKER)
    vars(worker)["CELL_CONNECT_CHECK_TIMEOUT"] = _REACHES_S
    given = worker.parse_arguments()  # from here on what FLARE's module does as a program
    worker.mpm.run(main_func=worker.main, run_dir=given.workspace, args=given)


if __name__ == "__main__":
    main()
