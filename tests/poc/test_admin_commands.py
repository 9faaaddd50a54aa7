"""The admin's commands against one real federation: submit once, follow, fetch; a failure; a server that was killed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from nvflare.fuel.hci.client import api
from nvflare.private.fed.authenticator import Authenticator
from poc.federation import LocalFederation
from poc.processes import belonging
from poc.project import SERVER
from simulation import SMALL, results, run_oracle, write_job
from standing import CEILING_S, standing

from fedretina.cli import main
from fedretina.flare import admin_session
from ports import free_port
from printed import blocks, shape, shown, without_moments

pytestmark = pytest.mark.flare
SITES = ("site-1", "site-2")
PAGE = "docs/admin.md"  # its runs have the names of those here, and its outputs are theirs
GATE = "GATED_TWEU_GATE"  # as tests/flare/parts/gated_tweu.py
# Its rounds are held by a gate: tests/flare/parts/gated_tweu.py.
GATED = {**SMALL, "objective": {"name": "gated_tweu"}, "phases": [{"name": "train", "rounds": 3}]}


@pytest.fixture(scope="module")
def federation(tmp_path_factory, once):
    once("the federation of the admin's commands")
    running = LocalFederation(tmp_path_factory.mktemp("federation"), SITES, free_port())
    os.environ[GATE] = str(running.folder / "gate")  # all processes of the federation inherit it
    try:
        running.prepare()
        running.start(CEILING_S)
        yield running
    finally:
        running.stop()
        del os.environ[GATE]


@pytest.fixture
def gate():
    """Holds the last round of `GATED` until it is opened, or the test ends."""
    held = Path(os.environ[GATE])
    held.write_text("2")
    yield held
    held.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """Results of the plain loop for the gated job."""
    return run_oracle(tmp_path_factory.mktemp("loop"), GATED, SITES)


@pytest.fixture
def admin(federation, monkeypatch):
    """Runs one command with the admin's kit; `as_json` parses what it prints."""
    monkeypatch.setenv("FEDRETINA_ADMIN_KIT", str(federation.admin_kit))

    def call(*words, code=0, as_json=False, answer=None):
        result = CliRunner().invoke(main, [*map(str, words), *(["--json"] if as_json else [])], input=answer)
        assert result.exit_code == code, result.output
        return [json.loads(line) for line in result.stdout.splitlines()] if as_json else result.output

    return call


@pytest.fixture
def as_shown(admin):
    """Runs a command that the page shows, and compares what it prints; what is in `instead` is not on the page."""

    def call(command, instead=None, **words):
        said = admin(*command.replace(*(instead or ("", ""))).split()[1:], **words)
        assert shape(without_moments(said)) == shape(without_moments(shown(PAGE, command)))
        return said

    return call


@pytest.fixture
def program(federation):
    """Starts a command as a process of its own, which FLARE's threads could keep from ending."""
    started = []

    def start(*words, kit=federation.admin_kit):
        called = [sys.executable, "-c", "from fedretina.cli import main; main()", *map(str, words)]
        environment = {**os.environ, "FEDRETINA_ADMIN_KIT": str(kit)}
        process = subprocess.Popen(
            called, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@contextmanager
def silence():
    """A port that takes every connection and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)  # the kernel takes them
        yield listener.getsockname()[1]


def ended(process, seconds=CEILING_S):
    """What a process printed and its exit code; that it ends at all is the question, so the bound is generous."""
    out, err = process.communicate(timeout=seconds)
    return out, err, process.returncode


def done(federation, run):
    path = federation.state / run / "server" / "run.json"
    return json.loads(path.read_text())["done"] if path.exists() else -1


def wait_for(federation, condition, what):
    deadline = time.monotonic() + CEILING_S
    while not condition():
        if time.monotonic() > deadline:
            logs = [federation.kit(name) / "console.txt" for name in (SERVER, *SITES)]
            said = standing(belonging(federation.flare), logs, federation.state)
            raise AssertionError(f"{what}: not within {CEILING_S:.0f} s\n{said}")
        time.sleep(0.2)


@pytest.mark.attack(
    "an accident",
    "the server stops answering while a run is watched",
    "the watching ends by its timeout, and without one goes on when the server does",
)
def test_a_run_is_submitted_once_followed_though_the_server_stops_answering_and_fetched(
    federation, admin, as_shown, program, oracle, gate, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    job = write_job(tmp_path / "jobs" / "feduaa", GATED, SITES)
    write_job(tmp_path / "jobs" / "fedavg", GATED, (*SITES, "site-3"))
    as_shown("fedretina submit jobs/fedavg --run spring", code=2)
    as_shown("fedretina submit jobs/feduaa --run study --poc")
    as_shown("fedretina submit jobs/feduaa --run study")  # is there: nothing is sent, nothing refused
    (first,) = admin("submit", job, "--run", "study", as_json=True)
    assert not first["new"]
    said = admin("watch", "--run", "study", "--timeout", 1, "--interval", 0.5, code=4)
    assert "has not ended within the time given" in said or "--timeout was over" in said  # as far as it came by then
    assert "waits for its end" in admin("results", "--run", "study", code=4)
    assert "before you resume" in admin("resume", "study", code=2)

    sights = []
    patient = program("watch", first["job"][:8], "--interval", 0.3, "--json")
    for line in patient.stdout:
        sights.append(json.loads(line))
        if gate.exists() and sights[-1]["progress"] and sights[-1]["progress"]["round"] == 3:
            stops_answering(federation, program)
            gate.unlink()
    told = [sight["progress"] for sight in sights if sight["progress"]]
    trained = [(report["round"], report["rounds"]) for report in told if report["task"] == "train"]
    assert trained == sorted(trained)  # the first rounds may be over before anybody looks
    assert trained[-1] == (3, 3)
    assert {report["run"] for report in told} == {"study"}
    assert any(sorted([*report["answered"], *report["waiting"]]) == list(SITES) for report in told)
    end = sights[-1]
    assert (end["status"], end["over"], end["complete"], end["why"]) == ("FINISHED:COMPLETED", True, True, None)
    assert all(not sight["over"] for sight in sights[:-1])

    table = admin("results", "--run", "study", "--out", tmp_path / "out")
    assert f"results: {tmp_path / 'out' / first['job']}/workspace/fedretina/results.json" in table
    (fetched,) = admin("results", "--run", "study", "--out", tmp_path / "out", as_json=True)  # over the first
    assert {key: value for key, value in fetched["results"].items() if key != "run"} == oracle
    assert results(federation.state, "study") == oracle
    downloaded = {path.suffix for path in (tmp_path / "out" / first["job"]).rglob("*") if path.is_file()}
    assert not downloaded & {".safetensors", ".pt", ".npy", ".png", ".jpg"}

    (again,) = admin("submit", job, "--run", "study", as_json=True)
    assert (again["job"], again["new"], again["status"]) == (first["job"], False, "FINISHED:COMPLETED")
    assert "has completed" in admin("resume", "study")
    other = write_job(tmp_path / "other", {**GATED, "seed": 4}, SITES)
    assert "other settings" in admin("submit", other, "--run", "study", code=2)
    (view,) = admin("status", as_json=True)
    assert view["sites"] == list(SITES)
    assert [job["job"] for job in view["jobs"] if job["run"] == "study"] == [first["job"]]
    assert "FINISHED:COMPLETED after" in as_shown("fedretina watch --run study")
    assert "FINISHED:COMPLETED after" in admin("status", "--run", "study")

    # A lead who goes back is told first what is lost; what is done anew has the bits of a run that never did it before.
    assert "is no step of this run" in admin("resume", "study", "--from", "train-0009", "--yes", code=2)
    assert "Add --yes" in admin("resume", "study", "--from", "train-0001", code=2, as_json=True)[0]["error"]
    as_shown("fedretina resume study --from train-0001", answer="y\n")
    assert admin("watch", "--run", "study", as_json=True)[-1]["complete"]
    assert results(federation.state, "study") == oracle
    (record,) = json.loads((federation.state / "study/server/run.json").read_text())["restarts"]
    assert record["dropped"] == ["train-0001", "train-0002", "validate-0000", "finalise-0000"]
    for end in ("server", *SITES):
        (aside,) = (federation.state / "study" / end).glob("dropped-*")
        assert (aside / ("train-0002.json" if end == "server" else "train-0002.safetensors")).exists()
    # What left once has left: the ledger tells both.
    lines = (federation.state / "study/site-1/ledger.jsonl").read_text().splitlines()
    sent = [(line["round"], line["attempt"]) for line in map(json.loads, lines) if line["phase"] == "train"]
    assert sent == [(0, 0), (1, 0), (2, 0), (1, 1000), (2, 1000)]
    assert "has completed" in admin("resume", "study")
    (again,) = admin("submit", job, "--run", "study", as_json=True)
    assert not again["new"]


def stops_answering(federation, program):
    """A server that is frozen while `study` is watched and a command is given, and then goes on."""
    for seconds in (25, 60, 240):  # counted from the call, and a busy machine takes long to import what it needs
        began = time.monotonic()
        hasty = program("watch", "--run", "study", "--interval", 0.5, "--timeout", seconds)
        named, seen = hasty.stdout.readline(), hasty.stdout.readline()
        if seen and time.monotonic() - began < seconds - 8:
            break
        hasty.kill()
    assert "run study" in named
    assert seen  # it has seen the job
    federation.signal_one(SERVER, signal.SIGSTOP)
    try:
        _, err, code = ended(program("status", "--timeout", 5))
        assert (code, "the time of --timeout was over" in err) == (4, True), err
        _, err, code = ended(hasty)
        assert code == 4, err
        assert "when it was last seen" in err or "no server answers" in err
    finally:
        federation.signal_one(SERVER, signal.SIGCONT)


def test_a_run_that_fails_says_why(admin, as_shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = write_job(tmp_path / "job", {**SMALL, "quorum": 3}, SITES)
    path = job / "app/config/config_fed_server.json"
    words = json.loads(path.read_text())
    for workflow in words["workflows"]:
        workflow["args"]["repeats"] = 0
    path.write_text(json.dumps(words))
    admin("submit", job, "--run", "thin", "--poc")
    said = as_shown("fedretina watch --run thin", code=1)
    assert "FINISHED:EXECUTION_EXCEPTION after" in said
    as_shown("fedretina results --run thin", code=1)
    (end,) = admin("status", "--run", "thin", as_json=True)
    assert not end["complete"]
    assert end["why"] == said.splitlines()[-1]
    assert "ended as FINISHED:EXECUTION_EXCEPTION" in admin("submit", job, "--run", "thin", code=2)


def test_what_is_not_there(federation, admin, tmp_path, monkeypatch):
    monkeypatch.setattr(admin_session, "_KNOCK_S", 60.0)  # what a knock brings is asked, not how soon
    for words in (("status", "ffffffff"), ("watch", "--run", "never"), ("results", "nothing"), ("resume", "never")):
        (said,) = admin(*words, code=3, as_json=True)
        assert said["exit"] == 3
    assert "no admin's startup kit" in admin("status", "--kit", tmp_path, code=3)
    assert "name a job by its id, or a run" in admin("watch", code=2)
    stranger = LocalFederation(tmp_path / "stranger", ("site-1",))
    try:
        stranger.prepare()
    finally:
        stranger.stop()
    assert "no server answers this admin" in admin(
        "status", "--kit", stranger.admin_kit, "--connect-timeout", 2, code=2
    )
    fed_admin = stranger.admin_kit / "startup" / "fed_admin.json"
    fed_admin.write_text(fed_admin.read_text().replace(str(stranger.port), str(federation.port)))
    # A kit of another federation: its certificate is not the server's, so there is no connection at all.
    said = admin("status", "--kit", stranger.admin_kit, "--connect-timeout", 2, code=2)
    assert "no server answers this admin" in said
    assert "is not the server of this kit" in said
    assert "names another server than the consortium's" in said


@pytest.mark.attack(
    "an accident",
    "the server is so busy that it answers an admin seconds after it has taken the connection",
    "the admin is answered within the time of --connect-timeout, and is told after it that the server runs",
)
def test_a_server_that_answers_late_is_waited_for_as_long_as_is_asked(federation, admin, monkeypatch):
    class ToABusyServer(Authenticator):
        """The server stands still for a while, from when it is connected on."""

        def authenticate(self, *words, **named):
            while self._challenge_server()[0] is None:
                time.sleep(0.1)
            federation.signal_one(SERVER, signal.SIGSTOP)
            again.append(threading.Timer(stands_s, federation.signal_one, (SERVER, signal.SIGCONT)))
            again[-1].start()
            return super().authenticate(*words, **named)

    monkeypatch.setattr(api, "Authenticator", ToABusyServer)
    monkeypatch.setattr(admin_session, "_KNOCK_S", 60.0)
    again = []
    try:
        stands_s = 7.0  # FLARE's own patience is 5 s
        assert "site-1" in admin("status", "--connect-timeout", 60)
        stands_s = 12.0
        said = admin("status", "--connect-timeout", 2, code=2)
    finally:
        for timer in again:
            timer.join()
    assert "it runs, since it takes this kit's certificate" in said


def test_a_killed_server_is_repaired_and_the_run_goes_on_with_the_same_bits(
    federation, admin, as_shown, oracle, gate, tmp_path
):
    job = write_job(tmp_path / "job", GATED, SITES)
    (first,) = admin("submit", job, "--run", "crash", "--poc", as_json=True)
    server = federation.kit(SERVER)
    wait_for(federation, lambda: done(federation, "crash") >= 1, "round 0")
    (busy,) = (block for block in blocks(PAGE) if "not touched" in block)
    assert shape(admin("repair", first["job"], "--server-kit", server, code=2)) == shape(busy)
    federation.kill_one(SERVER)
    gate.unlink()
    assert "no server answers this admin" in admin("status", "--connect-timeout", 2, code=2)
    federation.start_one(SERVER)
    federation.wait_for_sites(CEILING_S)
    assert "was started anew" in as_shown("fedretina watch --run crash", code=1)
    assert "lost by the server" in admin("submit", job, "--run", "crash", code=2)
    listed = admin("status")
    asked = ["repair", "--server-kit", str(server)]
    wait_for(federation, lambda: "still runs" not in CliRunner().invoke(main, asked).output, "the job's own end")
    kit = ("poc_workspace/flare/fedretina/prod_00/localhost", str(server))
    as_shown(f"fedretina repair --server-kit {kit[0]}", kit)
    as_shown(f"fedretina repair --server-kit {kit[0]} --yes", kit)
    (view,) = admin("status", first["job"], as_json=True)
    assert (view["status"], view["lost"]) == ("FINISHED:ABANDONED", False)
    as_shown("fedretina resume crash")
    (*_, end) = admin("watch", "--run", "crash", as_json=True)
    assert (end["resumes"], end["complete"]) == (first["job"], True)
    for line in shape(shown(PAGE, "fedretina status")).splitlines():  # the page's other run may not be in this process
        assert line.replace("study", "crash") in shape(listed + admin("status"))
    assert results(federation.state, "crash") == oracle


@pytest.mark.attack(
    "an accident",
    "the server accepts connections and never answers",
    "every admin command ends by its timeout, code 4, and says why",
)
def test_every_command_ends_in_time_where_nothing_answers(federation, program, tmp_path):
    job = write_job(tmp_path / "job", GATED, SITES)
    kit = shutil.copytree(federation.admin_kit, tmp_path / "kit")
    path = kit / "startup" / "fed_admin.json"
    with silence() as port:
        path.write_text(path.read_text().replace(str(federation.port), str(port)))
        calls = (("status",), ("watch", "--run", "r"), ("results", "--run", "r"), ("resume", "r"), ("submit", job))
        started = [program(*words, "--timeout", 4, "--json", kit=kit) for words in calls]
        hasty = program("status", "--connect-timeout", 2, kit=kit)
        for process in started:
            out, err, code = ended(process)
            assert code == 4, err
            assert json.loads(out)["exit"] == 4
            assert "the time of --timeout was over before we could connect" in err
        out, err, code = ended(hasty)
        assert code == 2
        assert "no server answers this admin" in err
