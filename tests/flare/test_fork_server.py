"""Sites of a simulation are forked from a process that has done the imports, or started as ever where that fails."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest
from nvflare.fuel.f3.streaming import stream_utils
from nvflare.private.fed.app.simulator import simulator_runner, simulator_worker
from nvflare.private.fed.client import client_runner

from fedretina.flare import fork_server
from fedretina.flare.fork_server import ForkServer, one_process_per_site, share_imports, wait_briefly
from ports import free_port


def started():
    found = ForkServer()
    found.start()
    return found


def worker(folder, *more):
    """The simulator's own command for a site; its worker then waits for the simulator to call."""
    port = str(free_port())
    given = {"-o": str(folder), "--logging_config": "concise", "--client": "site-7", "--token": "t", "--port": port}
    words = [word for pair in given.items() for word in pair]
    words += ["--parent_pid", str(os.getpid()), "--decomposer_module", "None", *more]
    return [sys.executable, "-m", fork_server._WORKER, *words]


def start(server, command):
    return server.popen(command, shell=False, preexec_fn=os.setsid, env=dict(os.environ, MARK="here"))


@pytest.mark.flare
def test_a_forked_site_is_flares_own_worker_and_ends_as_a_process_does(tmp_path, capfd):
    server = started()
    site = start(server, worker(tmp_path))
    assert not isinstance(site, subprocess.Popen)
    process = psutil.Process(site.pid)
    assert process.parent().parent().pid == os.getpid()
    while process.name() != "site-7":  # its first deed after it has its session
        assert process.is_running()
    assert os.getsid(site.pid) == site.pid != os.getsid(0)
    with pytest.raises(subprocess.TimeoutExpired):
        site.wait(timeout=0.1)
    assert site.poll() is None
    for _ in fork_server._LOADED_LATER:
        site.poll()
    assert any("/matplotlib/" in one.path for one in process.parent().memory_maps())
    site.terminate()
    assert site.wait(timeout=60) == site.poll() == -signal.SIGTERM

    killed = start(server, worker(tmp_path))
    killed.kill()
    assert killed.wait(timeout=60) == -signal.SIGKILL
    killed.terminate()  # nothing: the number may be another's by now
    refused = start(server, [*worker(tmp_path), "--no-such-word"])  # argparse's status
    assert refused.wait(timeout=60) == 2
    assert "unrecognized arguments: --no-such-word" in capfd.readouterr().err


@pytest.mark.flare
def test_where_the_fork_server_has_ended_sites_start_as_ever_and_running_ones_are_told_from_ended(tmp_path, caplog):
    server = started()
    site = start(server, worker(tmp_path))
    psutil.Process(site.pid).parent().kill()
    assert site.poll() is None
    os.kill(site.pid, signal.SIGKILL)
    assert site.wait(timeout=60) == -signal.SIGKILL
    other = start(server, [*worker(tmp_path), "--no-such-word"])
    assert isinstance(other, subprocess.Popen)
    assert other.wait() == 2
    assert "started with imports of its own" in caplog.text


def test_anything_else_is_started_as_ever():
    found = ForkServer().popen([sys.executable, "-c", "raise SystemExit(5)"])
    assert found.wait() == 5


def test_what_a_site_imports_is_loaded_before_the_fork_and_it_counts_streams_from_its_own(monkeypatch, tmp_path):
    seen = []

    def run(main_func, run_dir, args):
        assert (main_func, run_dir, args.client) == (simulator_worker.main, str(tmp_path), "site-7")
        seen.append(stream_utils.sid_base)

    monkeypatch.setattr(client_runner, "time", time)
    monkeypatch.setattr(fork_server.os, "setsid", lambda: None)
    monkeypatch.setattr(simulator_worker, "CELL_CONNECT_CHECK_TIMEOUT", 10.0)
    monkeypatch.setattr(simulator_worker.mpm, "run", run)
    monkeypatch.setattr(sys, "argv", ["fork_server"])
    before = stream_utils.sid_base
    for _ in range(2):
        fork_server._become(worker(tmp_path)[3:], dict(os.environ))
    assert len({before, *seen}) == 3
    assert simulator_worker.CELL_CONNECT_CHECK_TIMEOUT == fork_server._REACHES_S
    slept = []
    monkeypatch.setattr(fork_server.time, "sleep", slept.append)
    for seconds in (0.5, 5.0):
        client_runner.time.sleep(seconds)
    assert slept == [fork_server._LOOK_S, 5.0]


def test_the_simulator_is_changed_once(monkeypatch):
    monkeypatch.setattr(ForkServer, "start", lambda self: None)
    monkeypatch.setattr(simulator_runner, "subprocess", subprocess)
    share_imports(1)
    first = simulator_runner.subprocess
    assert first.TimeoutExpired is subprocess.TimeoutExpired
    share_imports(1)
    assert simulator_runner.subprocess is first


def test_two_threads_of_the_simulator_that_pick_one_site_run_it_one_after_the_other(monkeypatch):
    runs, most, picked, lock = set(), [0], [], threading.Lock()

    def flares_own(self, client, num_of_threads, gpu, lock, timeout=60.0):
        self.build_ctx["client_name"] = client.client_name
        runs.add(name := (client.client_name, threading.get_ident()))
        most[0] = max(most[0], len(runs))
        if client.client_name != "north":
            meet.wait(60)  # different sites run at the same time, each with its own name
        else:
            time.sleep(0.05)
        runs.discard(name)
        picked.append(self.get_next_run_client(gpu).client_name)
        if client.client_name == "west":
            raise RuntimeError("its process never came up")
        return client.client_name == "east", client, self.build_ctx["client_name"]

    monkeypatch.setattr(simulator_runner.SimulatorClientRunner, "do_one_task", flares_own)
    gone = []
    one_process_per_site(gone.append)
    changed = simulator_runner.SimulatorClientRunner.do_one_task
    one_process_per_site(gone.append)
    assert simulator_runner.SimulatorClientRunner.do_one_task is changed is not flares_own
    sites = [SimpleNamespace(client_name=name, simulate_running=False) for name in ("north", "east", "west")]
    runner = simulator_runner.SimulatorClientRunner("", SimpleNamespace(workspace="", set=None), sites, {}, {}, {})
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(runner.do_one_task, sites[0], 2, None, lock, timeout=1.0) for _ in range(2)]
        assert [one.result() for one in both] == 2 * [(False, sites[0], "north")]
        assert most == [1]
        assert gone == []
        meet = threading.Barrier(2)
        each = [threads.submit(runner.do_one_task, site, 2, None, lock) for site in sites[1:]]
        assert each[0].result() == (True, sites[1], "east")
        with pytest.raises(RuntimeError, match="never came up"):
            each[1].result()
    assert sorted(gone) == ["east", "west"]
    assert most == [2]
    assert sorted(picked) == ["east", "north", "north", "west"]  # one count of whose turn it is


@pytest.mark.parametrize("threads", [1, 2])
def test_the_simulator_looks_often_for_a_site_and_with_several_threads_waits_between_sites(monkeypatch, threads):
    slept = []
    monkeypatch.setattr(fork_server.time, "sleep", slept.append)
    monkeypatch.setattr(simulator_runner, "time", time)
    monkeypatch.setattr(
        simulator_runner.SimulatorClientRunner,
        "do_one_task",
        lambda self, client, num_of_threads, gpu, lock, timeout=60.0: simulator_runner.time.sleep(1.0),
    )
    wait_briefly()
    changed = simulator_runner.SimulatorClientRunner.do_one_task
    wait_briefly()
    assert simulator_runner.SimulatorClientRunner.do_one_task is changed
    simulator_runner.time.sleep(1.0)
    changed(None, None, threads, None, None, timeout=1.0)
    simulator_runner.time.sleep(1.0)
    assert slept == [1.0, fork_server._LOOK_S, fork_server._LOOK_S if threads == 1 else 1.0]


@pytest.mark.parametrize(
    ("at_once", "own", "set_to"),
    [(1, None, None), (5, None, "passive"), (5, "active", "active")],
)
def test_threads_of_sites_that_share_cores_sleep_while_they_wait(monkeypatch, at_once, own, set_to):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    seen = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, pass_fds, env: seen.append(env.get("OMP_WAIT_POLICY")))
    ForkServer(at_once).start()
    assert seen == [set_to]
