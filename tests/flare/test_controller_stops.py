"""The controller around a step that fails at the server, and around a run that it need not begin; no FLARE process."""

import errno
import json
import logging
from types import SimpleNamespace

import pytest
from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal

from fedretina.aggregation.coordinator import Coordinator
from fedretina.errors import QuorumError, RefusedError, StateError
from fedretina.exchange.encryption import SITE_FILE, new_keys
from fedretina.flare import server_run
from fedretina.flare.aggregator import SpoolAggregator
from fedretina.flare.controller import RoundController
from fedretina.flare.results_upload import FOLDER, STOPPED
from fedretina.flare.server_run import ServerRun
from fedretina.loop import run_loop
from fedretina.settings.site import ServerSettings, TrackingSettings
from fedretina.told import told
from fedretina.tracking.tracker import Tracker

JOB = "job"


class Engine:
    """All that the controller asks of FLARE's engine."""

    def __init__(self, folder, components):
        self.get_component = components.get
        self.get_workspace = lambda: SimpleNamespace(get_run_dir=lambda job: str(folder / job))
        self.panics, self.shown = [], []

    def get_clients(self):
        return [SimpleNamespace(name="site-1")]

    def fire_event(self, event, fl_ctx):
        told = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
        if event == EventType.FATAL_SYSTEM_ERROR:
            self.panics.append(told)
        elif event == EventType.WARNING_LOG_AVAILABLE:  # FLARE's `show_errors` gives these to every admin
            self.shown.append(str(from_shareable(told).data))


class Asking(RoundController):
    """Asks nobody, and counts how often it should."""

    asked = 0

    def _ask(self, coordinator, abort_signal, fl_ctx):
        self.asked += 1


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Runs a job of some settings over a folder of runs; gives its controller and what FLARE was told."""

    def run(experiment, **settings):
        monkeypatch.setattr(server_run, "load_experiment", lambda *_: experiment)
        own = ServerSettings(state_root=str(tmp_path), **settings)
        monkeypatch.setattr(server_run, "load_server_settings", lambda _: own)
        engine = Engine(tmp_path, {"run": ServerRun(), "aggregator": SpoolAggregator()})
        fl_ctx = FLContext()
        fl_ctx.set_prop(ReservedKey.ENGINE, engine, private=True, sticky=False)
        fl_ctx.set_prop(ReservedKey.RUN_NUM, JOB, private=False, sticky=False)
        runner = SimpleNamespace(config=SimpleNamespace(task_request_interval=0.5))
        fl_ctx.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
        controller = Asking(["train", "validate", "finalise"])
        monkeypatch.setattr(controller, "_engine", engine, raising=False)
        controller.start_controller(fl_ctx)
        controller.control_flow(Signal(), fl_ctx)
        return controller, engine.panics

    return run


@pytest.fixture
def stopped(tiny, tmp_path, monkeypatch):
    """Runs a step whose close raises; gives what the job left: the sentence, the note and the panic."""

    def run(error):
        coordinator = Coordinator(tiny(), "r", tmp_path / "server")
        server_run = ServerRun()
        monkeypatch.setattr(server_run, "_coordinator", coordinator)
        tracker = Tracker(TrackingSettings(log=True), tmp_path / "server", "r", "server", "e")
        monkeypatch.setattr(server_run, "_tracker", tracker)

        def close():
            raise error

        monkeypatch.setattr(coordinator, "close", close)
        engine = Engine(tmp_path, {"run": server_run, "aggregator": SpoolAggregator()})
        fl_ctx = FLContext()
        fl_ctx.set_prop(ReservedKey.ENGINE, engine, private=True, sticky=False)
        fl_ctx.set_prop(ReservedKey.RUN_NUM, JOB, private=False, sticky=False)
        controller = Asking(["train"])
        monkeypatch.setattr(controller, "_engine", engine, raising=False)
        monkeypatch.setattr(controller, "_opened", True)
        controller.control_flow(Signal(), fl_ctx)
        why = json.loads((tmp_path / JOB / FOLDER / STOPPED).read_text())["why"]
        notes = [json.loads(line) for line in (tmp_path / "server" / "log.jsonl").read_text().splitlines()]
        return why, notes[-1], engine.panics

    return run


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RefusedError("the sums have no solution.").telling("no solution."), "no solution."),
        (StateError("/srv/runs is full."), "StateError: the server's own log says what and where."),
        (QuorumError("too few."), "too few. It was tried 3 times."),
        (
            KeyError("images of patient smith"),
            "train-0000 failed at the server with KeyError: its own log says where.",
        ),
        (MemoryError(), "train-0000 failed at the server with MemoryError: its own log says where."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_whatever_ends_a_step_the_job_says_why(stopped, error, said):
    why, note, panics = stopped(error)
    assert why == said
    assert (note["event"], note["why"]) == ("stopped", said)
    assert panics == [said]


def test_a_run_that_cannot_be_opened_is_named(tiny, tmp_path, monkeypatch):
    Coordinator(tiny(), "spring", tmp_path / "spring" / "server")
    monkeypatch.setattr(server_run, "load_experiment", lambda *_: tiny(seed=5, run="spring"))
    monkeypatch.setattr(server_run, "load_server_settings", lambda _: ServerSettings(state_root=str(tmp_path)))
    run = ServerRun()
    with pytest.raises(StateError, match="a run of other settings") as found:
        run.open(FLContext())
    assert "spring/server holds a run of other settings" in told(found.value, run.known, end="server")
    assert str(tmp_path) not in told(found.value, run.known, end="server")


@pytest.mark.parametrize(("threads", "turns"), [(1, 5), (2, 3), (4, 2), (5, 1), (None, 5)])
def test_sites_that_take_turns_in_the_simulator_have_the_budget_each(begun, tiny, monkeypatch, threads, turns):
    names = [f"site-{number}" for number in range(1, 6)]
    monkeypatch.setattr(Engine, "get_clients", lambda self: [SimpleNamespace(name=name) for name in names])
    monkeypatch.setattr(Engine, "args", SimpleNamespace(threads=threads), raising=False)
    monkeypatch.setattr(server_run, "SimulatorServerEngine", Engine)
    sent = []

    def ask(self, coordinator, abort_signal, fl_ctx):
        sent.append(self._task("site-1", coordinator, SimpleNamespace(held=None), False))

    monkeypatch.setattr(Asking, "_ask", ask)
    begun(tiny(run="turns", phases=[{"name": "train", "rounds": 1}]))
    assert {task.timeout for task in sent} == {3600 * turns}


def test_a_run_that_is_complete_asks_nobody_and_hands_its_results_on(begun, tiny, phantoms, tmp_path):
    experiment = tiny(run="whole", phases=[{"name": "train", "rounds": 1}])
    run_loop(experiment, phantoms(experiment, "site-1"), tmp_path, "whole")
    before = (tmp_path / "whole" / "server" / "run.json").read_bytes()
    controller, panics = begun(experiment)
    assert (controller.asked, panics) == (0, [])
    assert (tmp_path / JOB / FOLDER / "results.json").exists()
    assert (tmp_path / "whole" / "server" / "run.json").read_bytes() == before


def test_where_the_servers_disk_cannot_be_written_is_for_its_own_log_alone(begun, tiny, tmp_path, monkeypatch, caplog):
    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(server_run, "Handover", full)
    (tmp_path / JOB / FOLDER).parent.mkdir()
    (tmp_path / JOB / FOLDER).write_text("in the way of the results")
    controller, _ = begun(tiny(run="full", phases=[{"name": "train", "rounds": 1}], quorum=1))
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("answers are kept in memory until they are stored" in words for words in told)
    assert any(str(tmp_path / JOB / FOLDER) in words for words in told)
    shown = controller._engine.shown
    assert not [words for words in shown if str(tmp_path) in words]
    assert shown  # and what names no file is shown: the quorum is missed


def test_a_server_with_the_sites_key_is_stopped_before_a_round(begun, tiny, tmp_path):
    pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
    new_keys(tmp_path / "keys")
    experiment = tiny(run="sealed", grades=5, exchange={"personal": "nothing", "encrypt": "head"})
    controller, (why,) = begun(experiment, he_keys=str(tmp_path / "keys" / SITE_FILE))
    assert "he_keys of this end names the file of the sites" in why
    assert controller.asked == 0
    assert not list(tmp_path.rglob("train-*"))


def test_a_server_whose_weights_file_is_another_than_the_jobs_or_that_names_none_asks_nobody(begun, tiny, tmp_path):
    file = tmp_path / "of-a-patient.safetensors"
    file.write_bytes(b"another file")
    experiment = tiny(run="spring", network={"weights": {"source": "file", "sha256": 64 * "a"}})
    for settings, said in (
        ({}, "set weights_file in this end's own settings to a copy of it."),
        ({"weights_file": file}, f"is not the expected one, whose sha256 is {64 * 'a'}: fetch that one"),
    ):
        controller, (why,) = begun(experiment, **settings)
        assert said in why
        assert file.name not in why
        assert controller.asked == 0
    assert not list(tmp_path.rglob("train-*"))


@pytest.mark.attack(
    "an accident", "the message that the run is over is lost on its way to a site", "the site is told until it answers"
)
def test_each_site_is_told_that_the_run_is_over_until_it_answers(tmp_path):
    engine, asked = Engine(tmp_path, {}), []
    engine.get_clients = lambda: [SimpleNamespace(name=name) for name in ("site-1", "site-2", "site-3")]

    def send(targets, topic, request, timeout, fl_ctx, optional):
        asked.append((topic, targets))
        lost = len(asked) == 1  # the first message to site-2
        codes = {name: ReturnCode.TIMEOUT if lost and name == "site-2" else ReturnCode.OK for name in targets}
        return {name: make_reply(code) for name, code in codes.items()}

    engine.send_aux_request = send
    fl_ctx = FLContext()
    fl_ctx.set_prop(ReservedKey.ENGINE, engine, private=True, sticky=False)
    run = ServerRun()
    run.dead.add("site-3")
    run.handle_event(EventType.ABOUT_TO_END_RUN, fl_ctx)
    assert asked == [(ReservedTopic.END_RUN, ["site-1", "site-2"]), (ReservedTopic.END_RUN, ["site-2"])]
    aborted = Signal()
    aborted.trigger(True)
    fl_ctx.set_prop(ReservedKey.RUN_ABORT_SIGNAL, aborted, private=True, sticky=False)
    run.handle_event(EventType.ABOUT_TO_END_RUN, fl_ctx)
    assert len(asked) == 2  # who aborts a job ends its sites
