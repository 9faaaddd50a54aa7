"""Curves and log lines: what goes into them, what never does, and what a missing extra or a full disk means."""

import contextlib
import getpass
import json
import logging
import socket
import struct
import subprocess
import sys
import time

import psutil
import pytest

from fedretina.errors import SettingsError
from fedretina.settings.site import TrackingSettings
from fedretina.tracking.curves import Point, server_points, site_points
from fedretina.tracking.tracker import Tracker

RECORDS = [
    {
        "task": "train",
        "scalars": {"north": {"theta": 0.5, "images": 24.0}, "south": {"theta": 0.25}},
        "weights": {"north": 0.6, "south": 0.4},
        "refused": {"west": "it did not answer in time."},
        "bytes_up": {"north": 10, "south": 20},
    },
    {"task": "validate", "scalars": {"north": {"val_auc": 0.75}}, "refused": {}, "bytes_up": {"north": 0}},
]


def tracker(folder, **words):
    return Tracker(TrackingSettings(**words), folder, "spring", "server", "study")


def read_back(folder):
    """Points of all event files of a folder, by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_the_servers_points_are_the_scalars_that_sites_let_go():
    first, second = server_points(RECORDS)
    assert set(first) == {
        Point("train/theta/north", 0, 0.5),
        Point("train/images/north", 0, 24.0),
        Point("train/theta/south", 0, 0.25),
        Point("train/weight/north", 0, 0.6),
        Point("train/weight/south", 0, 0.4),
        Point("run/sites_accepted", 0, 2.0),
        Point("run/sites_refused", 0, 1.0),
        Point("run/bytes_up", 0, 30.0),
    }
    assert Point("validate/val_auc/north", 1, 0.75) in second


def test_a_sites_points_are_the_numbers_of_its_history():
    entry = {
        "step": "train-0003",
        "loss": 1.5,
        "theta": {"value": 0.5, "reason": "measured"},
        "weight": None,
        "ok": True,
    }
    assert site_points({3: entry}) == [[Point("loss", 3, 1.5), Point("theta/value", 3, 0.5)]]


def test_a_run_that_goes_on_has_each_point_once(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    first = tracker(tmp_path, tensorboard=True)
    first.follow(lambda: server_points(RECORDS[:1]))
    first.follow(lambda: server_points(RECORDS[:1]))  # and is killed: nothing is closed
    again = tracker(tmp_path, tensorboard=True)
    again.follow(lambda: server_points(RECORDS))
    again.close()
    found = read_back(tmp_path / "tensorboard")
    assert found["train/theta/south"] == [(0, 0.25)]
    assert found["run/sites_accepted"] == [(0, 2.0), (1, 1.0)]
    assert found["validate/val_auc/north"] == [(1, 0.75)]


def test_mlflow_finds_its_run_again(tmp_path):
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra `mlflow` is not installed")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for until in (1, 2):
        curves = tracker(tmp_path, mlflow=uri)
        curves.follow(lambda until=until: server_points(RECORDS[:until]))
        curves.close()
    client = tracking.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    assert run.info.run_name == "spring/server"
    history = client.get_metric_history(run.info.run_id, "run/sites_accepted")
    assert [(metric.step, metric.value) for metric in history] == [(0, 2.0), (1, 1.0)]


def test_mlflow_has_a_run_of_its_own_for_what_was_dropped(tmp_path):
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra `mlflow` is not installed")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    again = [RECORDS[0], {**RECORDS[1], "scalars": {"north": {}, "south": {}}}]
    for steps in (RECORDS[:2], RECORDS[:1], again):  # it goes back to its second step, and does it again
        curves = tracker(tmp_path, mlflow=uri)
        curves.follow(lambda steps=steps: server_points(steps))
        curves.close()
    client = tracking.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    histories = {run.info.run_name: client.get_metric_history(run.info.run_id, "run/sites_accepted") for run in runs}
    points = {name: [(one.step, one.value) for one in history] for name, history in histories.items()}
    before = [(0, 2.0), (1, 1.0)]
    assert points == {"spring/server, before it went back": before, "spring/server": [(0, 2.0), (1, 2.0)]}


def stored(file):
    """Steps of an offline run of Weights & Biases: LevelDB's log format, of messages that W&B's package describes."""
    from wandb.proto import wandb_internal_pb2

    data, at, steps = file.read_bytes(), 7, []
    while at < len(data):
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        assert kind == 1  # whole in one piece; that of a block of 32 kB would not be
        record = wandb_internal_pb2.Record.FromString(data[at + 7 : at + 7 + length])
        if record.HasField("history"):
            found = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            steps.append({name: value for name, value in found.items() if name == "_step" or name[0] != "_"})
        at += 7 + length
    return steps


def unreported(writer):
    """The writer's children that report no errors of theirs; it also starts git, for a moment."""
    found = []
    for child in writer.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child] if "--no-observability" in child.cmdline() else []
    return found


def test_weights_and_biases_is_written_offline_and_tells_nothing_of_the_machine(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "online")  # of somebody's shell
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("LOGNAME", "somebody-here")
    first = tracker(tmp_path, wandb=True)
    first.follow(lambda: server_points(RECORDS[:1]))
    (writer,) = psutil.Process().children()
    deadline = time.monotonic() + 60
    while not (core := unreported(writer)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert core  # without the option "offline" still reports errors
    writer.kill()
    writer.wait()
    assert not psutil.wait_procs(core, 60)[1]  # until then it still makes files in the folder
    again = tracker(tmp_path, wandb=True)
    again.follow(lambda: server_points(RECORDS[:1]))
    again.follow(lambda: server_points(RECORDS))
    again.close()
    assert not psutil.Process().children()
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    expected = [{point.name: point.value for point in points} for points in server_points(RECORDS)]
    assert stored(file) == [{"_step": number, **points} for number, points in enumerate(expected)]
    assert getpass.getuser() == "somebody-here"
    for word in (
        *filter(lambda name: len(name) > 5, [socket.gethostname()]),
        str(tmp_path),
        sys.executable,
        "0" * 40,
        getpass.getuser(),
    ):
        assert word.encode() not in file.read_bytes()


def test_a_writer_that_fails_costs_curves_and_no_round(tmp_path, caplog):
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    broken = tracker(tmp_path, wandb=True)
    (writer,) = psutil.Process().children()
    writer.kill()
    writer.wait()
    broken.follow(lambda: server_points(RECORDS))
    broken.close()
    assert caplog.text.count("curves are not up to date") == 2


@pytest.mark.parametrize(
    ("extra", "module", "words", "library"),
    [
        ("tensorboard", "torch.utils.tensorboard", True, "tensorboard"),
        ("mlflow", "mlflow.tracking", "sqlite:///nowhere.db", "mlflow-skinny"),
        ("wandb", "wandb", True, "wandb"),
    ],
)
def test_an_extra_that_is_asked_for_and_absent_is_named(tmp_path, monkeypatch, extra, module, words, library):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError, match=rf'tracking\.{extra} is set, .*run `pip install "{library}>='):
        tracker(tmp_path, **{extra: words})


def test_nothing_is_imported_or_written_unless_it_is_asked_for(tmp_path):
    quiet = tracker(tmp_path / "run")
    quiet.note("opened")
    quiet.follow(lambda: pytest.fail("nobody reads it"))
    quiet.close()
    assert not (tmp_path / "run").exists()


def test_a_line_has_its_fields_and_a_full_disk_costs_no_round(tmp_path, monkeypatch, caplog):
    lines = tracker(tmp_path, log=True)
    lines.note("closed", {"phase": "train", "round": 0, "attempt": 1}, accepted=["north"], seconds=1.5)
    (line,) = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "event": "closed",
        "run": "spring",
        "end": "server",
        "phase": "train",
        "round": 0,
        "attempt": 1,
        "accepted": ["north"],
        "seconds": 1.5,
    }
    (tmp_path / "log.jsonl").unlink()
    (tmp_path / "log.jsonl").mkdir()
    with caplog.at_level(logging.WARNING):
        lines.note("stopped")
    assert "cannot be written" in caplog.text


SHORT_OF_ROOM = """
import resource, signal, sys
from pathlib import Path
from fedretina.errors import StateError
from fedretina.tracking.tracker import RunLog
path = Path(sys.argv[1])
log = RunLog(path, "r", "site-1")
log.note("opened")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, resource.RLIM_INFINITY))
try:
    log.note("answered")
except StateError as error:
    assert "make room" in str(error)
else:
    raise SystemExit("the line was taken")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.note("completed")
"""


def test_a_line_for_which_there_is_no_room_leaves_no_half_line(tmp_path):
    """A file that may grow by twenty bytes only takes half a line, as a full disk does."""
    path = tmp_path / "log.jsonl"
    subprocess.run([sys.executable, "-c", SHORT_OF_ROOM, str(path)], check=True)
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["opened", "completed"]
