"""`fedretina receive`: a queue that survives, refusals by status, and a real Orthanc that sends and is sent to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from threading import Thread
from types import SimpleNamespace

import pytest

from fedretina.cli.receive import LogLine
from fedretina.data.decode import decode_image
from fedretina.data.dicom_file import warnings_held_back
from fedretina.dicom import receiver as module
from fedretina.dicom.receiver import TAKEN, Peer, Receiver
from fedretina.errors import SettingsError, StateError
from fedretina.prediction.predictor import Predictor

pytest.importorskip("pynetdicom", reason="the extra dicom is not installed")
pytest.importorskip("highdicom", reason="the extra dicom is not installed")

from pydicom import dcmread
from pynetdicom import AE, evt
from pynetdicom.sop_class import ComprehensiveSRStorage, EncapsulatedPDFStorage, Verification

from dicom_writing import OCT, OP_8, write_dicom

WAIT_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, what):
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def pictures(hospital, root, number):
    pixels = [decode_image(hospital.images / file) for file in hospital.files[:number]]
    return [write_dicom(root / f"IM{at}", one, eye="RL"[at % 2]) for at, one in enumerate(pixels)]


def store(port, path, title="ARCHIVE", called="FEDRETINA"):
    """Send a file; its status, or None where the association is refused."""
    entity = AE(ae_title=title)
    entity.add_requested_context(OP_8)
    entity.add_requested_context(Verification)
    association = entity.associate("127.0.0.1", port, ae_title=called)
    if not association.is_established:
        return None
    assert association.send_c_echo().Status == 0
    status = association.send_c_store(dcmread(path)).Status
    association.release()
    return status


@pytest.fixture
def served(gated, tmp_path):
    """Starts receivers in threads of this process, and stops them."""
    running = []

    def start(to_port, **more):
        port = free_port()
        to = Peer("ARCHIVE", "127.0.0.1", to_port)
        found = Receiver(Predictor.load(gated, "cpu"), tmp_path / "queue", "FEDRETINA", ("ARCHIVE",), to, **more)
        thread = Thread(target=found.serve, args=("127.0.0.1", port))
        thread.start()
        running.append((found, thread))
        until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "it listens")
        return found, port

    yield start
    for found, thread in running:
        found.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.fixture
def archive():
    """Takes what is sent, but only from the second association on."""
    taken, calls = [], []
    entity = AE(ae_title="ARCHIVE")
    for kind in (ComprehensiveSRStorage, EncapsulatedPDFStorage):
        entity.add_supported_context(kind)

    def take(event):
        calls.append(1)
        if len(calls) == 1:
            return 0xA700
        taken.append(event.dataset)
        return 0x0000

    server = entity.start_server(("127.0.0.1", 0), block=False, evt_handlers=[(evt.EVT_C_STORE, take)])
    yield SimpleNamespace(port=server.server_address[1], taken=taken)
    server.shutdown()


def test_what_is_confirmed_is_answered_and_the_answers_are_sent_until_they_are_taken(
    hospital, served, archive, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(module, "_RETRY_S", (0.1, 0.2))
    caplog.set_level("INFO", module.__name__)
    _, port = served(archive.port, quiet_s=0.5)
    for path in pictures(hospital, tmp_path / "in", 2):
        assert store(port, path) == 0
    until(lambda: not list((tmp_path / "queue" / "waiting").iterdir()), "the queue is empty")
    kinds = [one.SOPClassUID for one in archive.taken]
    assert sorted(kinds) == sorted([EncapsulatedPDFStorage, ComprehensiveSRStorage] * 2)
    assert {one.PatientID for one in archive.taken} == {"MRN0001"}
    assert not list((tmp_path / "queue" / "answers").iterdir())
    assert "answers could not be sent to ARCHIVE" in caplog.text
    assert "MRN0001" not in caplog.text
    assert "Phantom" not in caplog.text
    until(lambda: "a study was answered, and the answers were sent: 2 pictures" in caplog.text, "it says so")
    lines = [json.loads(LogLine().format(record)) for record in caplog.records if record.name == module.__name__]
    told = [line["said"] for line in lines if line["level"] == "info"]
    assert "a study is being answered: 2 pictures" in told


def test_what_cannot_be_taken_is_refused_by_a_status(hospital, served, tmp_path, caplog):
    (path,) = pictures(hospital, tmp_path / "in", 1)
    _, port = served(free_port(), quiet_s=3600, most_bytes=path.stat().st_size + 100)
    assert store(port, path, title="STRANGER") is None
    assert store(port, path, called="OTHER") is None
    scans = AE(ae_title="ARCHIVE")
    scans.add_requested_context(OCT)  # of a model of photographs
    assert not scans.associate("127.0.0.1", port, ae_title="FEDRETINA").is_established
    nameless = write_dicom(tmp_path / "in" / "nameless", dcmread(path).pixel_array, StudyInstanceUID=None)
    assert store(port, nameless) == 0xC000
    with warnings_held_back():
        away = write_dicom(tmp_path / "in" / "away", dcmread(path).pixel_array, StudyInstanceUID="../../etc")
    assert store(port, away) == 0xA900
    assert store(port, path) == 0
    assert store(port, write_dicom(tmp_path / "in" / "more", dcmread(path).pixel_array)) == 0xA700
    waiting = [one for one in (tmp_path / "queue" / "waiting").rglob("*") if one.is_file()]
    assert len(waiting) == 1
    taken, sent = dcmread(waiting[0]), dcmread(path)
    assert taken.PixelData == sent.PixelData
    assert (taken.PatientID, taken.StudyInstanceUID) == (sent.PatientID, sent.StudyInstanceUID)
    said = [record.getMessage() for record in caplog.records if record.threadName != "MainThread"]  # which sends
    assert len(said) >= 3
    assert not any("etc" in line for line in said)
    assert waiting[0].stat().st_mode & 0o077 == 0


def test_a_queue_that_cannot_be_written_confirms_nothing(hospital, gated, tmp_path, monkeypatch):
    (path,) = pictures(hospital, tmp_path / "in", 1)
    (tmp_path / "queue" / "waiting").mkdir(parents=True)
    to = Peer("ARCHIVE", "127.0.0.1", 4242)
    found = Receiver(Predictor.load(gated, "cpu"), tmp_path / "queue", "FEDRETINA", ("ARCHIVE",), to)

    def full(*_, **__):
        raise StateError("the disk is full.")

    monkeypatch.setattr(module, "write_bytes", full)
    request = SimpleNamespace(AffectedSOPInstanceUID="1.2.3", AffectedSOPClassUID=next(iter(TAKEN)))
    event = SimpleNamespace(request=request, dataset=dcmread(path), encoded_dataset=path.read_bytes)
    assert found.take(event) == 0xA700
    for text in ("ARCHIVE", "ARCHIVE@host", "ARCHIVE@host:0", "A@b:99999"):
        with pytest.raises(SettingsError, match="write AET@HOST:PORT"):
            Peer.named(text)


def test_a_study_that_fails_is_put_aside_without_its_header_and_a_full_disk_is_waited_for(
    hospital, gated, tmp_path, monkeypatch, caplog
):
    found = Receiver(
        Predictor.load(gated, "cpu"), tmp_path, "FEDRETINA", ("ARCHIVE",), Peer("ARCHIVE", "127.0.0.1", 4242)
    )
    (tmp_path / "failed").mkdir()
    pixels = decode_image(hospital.images / hospital.files[0])
    with warnings_held_back():
        study = write_dicom(tmp_path / "waiting" / "one" / "a.dcm", pixels, PatientSex="DOE").parent

    def full(*_, **__):
        raise StateError("the disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_answers", full)
        found._do(study)
    assert study.exists()
    assert "make room" in caplog.text
    found._do(study)
    assert not study.exists()
    assert (tmp_path / "failed" / "one" / "a.dcm").exists()
    assert "put aside in failed" in caplog.text
    assert "DOE" not in caplog.text


ORTHANC = shutil.which("Orthanc") or shutil.which("Orthanc", path="/usr/sbin:/usr/bin")


@pytest.mark.slow
@pytest.mark.skipif(ORTHANC is None, reason="Orthanc (Debian's orthanc) is not installed")
def test_an_orthanc_sends_pictures_and_gets_answers_though_the_receiver_is_killed_between(hospital, gated, tmp_path):
    http, dicom, own = free_port(), free_port(), free_port()
    config = {
        "Name": "archive",
        "StorageDirectory": str(tmp_path / "orthanc"),
        "IndexDirectory": str(tmp_path / "orthanc"),
        "Plugins": [],
        "HttpPort": http,
        "DicomPort": dicom,
        "DicomAet": "ARCHIVE",
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": False,
        "DicomAlwaysAllowStore": True,
        "DicomModalities": {"model": ["FEDRETINA", "127.0.0.1", own]},
    }
    (tmp_path / "orthanc.json").write_text(json.dumps(config))

    def ask(place, data=None):
        request = urllib.request.Request(f"http://127.0.0.1:{http}{place}", data=data)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return json.loads(answer.read())

    def up():
        return socket.socket().connect_ex(("127.0.0.1", http)) == 0

    def receiver(quiet):
        words = ["receive", "--model", gated, "--queue", tmp_path / "queue", "--port", own, "--from", "ARCHIVE"]
        words += ["--send-to", f"ARCHIVE@127.0.0.1:{dicom}", "--quiet", quiet, "--device", "cpu"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        found = subprocess.Popen([sys.executable, "-m", "fedretina", *map(str, words)], env=environment)
        until(lambda: socket.socket().connect_ex(("127.0.0.1", own)) == 0, "the receiver listens")
        return found

    archive = subprocess.Popen(
        [ORTHANC, str(tmp_path / "orthanc.json")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    running = [archive]
    try:
        until(up, "Orthanc listens")
        sent = [ask("/instances", path.read_bytes())["ID"] for path in pictures(hospital, tmp_path / "in", 2)]
        running.append(receiver(3600))
        assert ask("/modalities/model/store", json.dumps(sent).encode())["FailedInstancesCount"] == 0
        running[-1].kill()
        running[-1].wait()
        assert len(ask("/instances")) == 2
        running.append(receiver(0))
        until(lambda: len(ask("/instances")) == 6, "two reports and two pages")
        (study,) = ask("/studies")
        kinds = [ask(f"/series/{one}")["MainDicomTags"]["Modality"] for one in ask(f"/studies/{study}")["Series"]]
        assert sorted(set(kinds)) == ["DOC", "OP", "SR"]
        until(lambda: not list((tmp_path / "queue" / "waiting").iterdir()), "the queue is empty")
        running[-1].send_signal(signal.SIGTERM)
        assert running[-1].wait(WAIT_S) == 0
    finally:
        for process in running:
            process.kill()
            process.wait()
