"""`fedretina receive`: a queue that survives, refusals by status, and a real Orthanc that sends and is sent to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedretina.cli.receive import LogLine
from fedretina.data.decode import decode_image
from fedretina.data.dicom_file import warnings_held_back
from fedretina.dicom import receiver as module
from fedretina.dicom.receiver import TAKEN, Peer, Receiver, Tls
from fedretina.errors import SettingsError, StateError
from fedretina.prediction.predictor import ImageRow, Predictor
from fedretina.uncertainty.referral import Referral

pytest.importorskip("pynetdicom", reason="the extra dicom is not installed")
pytest.importorskip("highdicom", reason="the extra dicom is not installed")

from pydicom import dcmread
from pynetdicom import AE, evt
from pynetdicom.sop_class import ComprehensiveSRStorage, EncapsulatedPDFStorage, Verification

from dicom_writing import OCT, OP_8, write_dicom
from ports import free_port

WAIT_S = 120


def until(condition, what):
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def pictures(hospital, root, number):
    pixels = [decode_image(hospital.images / file) for file in hospital.files[:number]]
    return [write_dicom(root / f"IM{at}", one, eye="RL"[at % 2]) for at, one in enumerate(pixels)]


def store(port, path, title="ARCHIVE", called="FEDRETINA", tls=None):
    """Send a file; its status, or None where the association is refused."""
    entity = AE(ae_title=title)
    entity.add_requested_context(OP_8)
    entity.add_requested_context(Verification)
    told = None if tls is None else (tls, "127.0.0.1")
    association = entity.associate("127.0.0.1", port, ae_title=called, tls_args=told)
    if not association.is_established:
        return None
    assert association.send_c_echo().Status == 0
    status = association.send_c_store(dcmread(path)).Status
    association.release()
    return status


def write_identity(folder, authority, names):
    """Certificates of this machine, of an authority of their own; returns each with its key and that authority's."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, authority)])
    found = {}
    for name in (authority, *names):
        own = key if name == authority else ec.generate_private_key(ec.SECP256R1())
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(root)
            .public_key(own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(name == authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        files = Tls(folder / f"{name}.crt", folder / f"{name}.key", folder / f"{authority}.crt")
        files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(own.private_bytes(*form))
        found[name] = files
    return found


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    return write_identity(folder, "hospital", ["archive", "model"]) | write_identity(folder, "elsewhere", ["stranger"])


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
def archive(identities):
    """Takes what is sent by TLS, but only from the second association on."""
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

    tls = identities["archive"].context(True)
    server = entity.start_server(("127.0.0.1", 0), False, tls, [(evt.EVT_C_STORE, take)])
    yield SimpleNamespace(port=server.server_address[1], taken=taken)
    server.shutdown()


@pytest.mark.attack(
    "an outsider", "sends a picture to a receiver without a certificate of its authority", "is not heard"
)
@pytest.mark.attack("an outsider", "opens a connection to a receiver and stays silent", "others are served meanwhile")
def test_what_is_confirmed_is_answered_and_the_answers_are_sent_until_they_are_taken(
    hospital, served, archive, identities, tmp_path, monkeypatch, caplog
):
    """By TLS on both sides."""
    monkeypatch.setattr(module, "_RETRY_S", (0.1, 0.2))
    caplog.set_level("INFO", module.__name__)
    (tmp_path / "fhir").mkdir()
    _, port = served(archive.port, quiet_s=3600, tls=identities["model"], fhir=tmp_path / "fhir")
    nobody = ssl.create_default_context(cafile=identities["archive"].authority)
    silent = socket.create_connection(("127.0.0.1", port))
    for at, path in enumerate(pictures(hospital, tmp_path / "in", 2)):
        if at == 0:
            stranger = identities["stranger"]._replace(authority=identities["archive"].authority)
            assert store(port, path) is None
            assert store(port, path, tls=nobody) is None
            assert store(port, path, tls=stranger.context(False)) is None
        assert store(port, path, tls=identities["archive"].context(False)) == 0
    silent.close()
    for path in (tmp_path / "queue" / "waiting").rglob("*.dcm"):
        os.utime(path, (time.time() - 3600,) * 2)
    until(lambda: not list((tmp_path / "queue" / "waiting").iterdir()), "the queue is empty")
    kinds = [one.SOPClassUID for one in archive.taken]
    assert sorted(kinds) == sorted([EncapsulatedPDFStorage, ComprehensiveSRStorage] * 2)
    assert {one.PatientID for one in archive.taken} == {"MRN0001"}
    assert not list((tmp_path / "queue" / "answers").iterdir())
    assert not list((tmp_path / "queue" / "arriving").iterdir())
    bundles = [json.loads(path.read_text()) for path in (tmp_path / "fhir").iterdir()]
    assert [one["resourceType"] for one in bundles] == ["Bundle"] * 2
    assert {one["identifier"]["value"] for one in bundles} == {
        f"urn:uuid:{path.stem}" for path in (tmp_path / "fhir").iterdir()
    }
    assert "answers could not be sent to ARCHIVE: it refused one (status 0xA700); tried again in" in caplog.text
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
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "sync", full)
    request = SimpleNamespace(AffectedSOPInstanceUID="1.2.3", AffectedSOPClassUID=next(iter(TAKEN)))
    assert found.take(SimpleNamespace(request=request, dataset_path=path)) == 0xA700
    assert not list((tmp_path / "queue" / "waiting").rglob("*.dcm"))
    for text in ("ARCHIVE", "ARCHIVE@host", "ARCHIVE@host:0", "A@b:99999"):
        with pytest.raises(SettingsError, match="write AET@HOST:PORT"):
            Peer.named(text)


def test_a_study_that_fails_is_put_aside_without_its_header_and_a_full_disk_is_waited_for(
    hospital, gated, tmp_path, monkeypatch, caplog
):
    found = Receiver(
        Predictor.load(gated, "cpu"), tmp_path, "FEDRETINA", ("ARCHIVE",), Peer("ARCHIVE", "127.0.0.1", 4242)
    )
    for name in ("failed", "arriving", "earlier"):
        (tmp_path / name).mkdir()
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
    assert "put aside in failed for 30 days" in caplog.text
    assert "DOE" not in caplog.text
    for at, name in enumerate(("two", "three", "four")):
        other = tmp_path / "failed" / name
        shutil.copytree(tmp_path / "failed" / "one", other)
        os.utime(other, (time.time() - (at + 1) * 20 * 86400,) * 2)
    found._most = int(2.5 * (tmp_path / "failed" / "one" / "a.dcm").stat().st_size)
    os.utime(tmp_path / "failed" / "two")
    for name, age in (("broken_off", 3600), ("coming", 1)):
        (tmp_path / "arriving" / name).touch()
        os.utime(tmp_path / "arriving" / name, (time.time() - age,) * 2)
    found._tidy()
    assert {path.name for path in (tmp_path / "failed").iterdir()} == {"one", "two"}  # 40 and 60 days are too many
    assert "2 studies were removed from failed" in caplog.text
    assert [path.name for path in (tmp_path / "arriving").iterdir()] == ["coming"]
    found._most //= 2
    found._tidy()
    assert [path.name for path in (tmp_path / "failed").iterdir()] == [
        "two"
    ]  # the oldest goes where too much lies there


ILL = "ill.dcm"


@pytest.fixture
def answering(gated, tmp_path, monkeypatch):
    """A receiver whose model finds disease in one picture and none in others; keeps what would be sent, by eye."""
    for name in ("waiting", "answers", "failed", "arriving", "earlier"):
        (tmp_path / "queue" / name).mkdir(parents=True)
    model = Predictor.load(gated, "cpu")

    def predict(root, files, frames):
        for file in files:
            worst = model.scheme.num_classes - 1 if file == ILL else 0
            said = np.full(model.scheme.num_classes, 0.01)
            said[worst] += 1 - said.sum()
            reasons = ("referable grade",) if worst else ()
            yield ImageRow(file, worst, said, 0.1, Referral(bool(reasons), reasons), "")

    monkeypatch.setattr(model, "predict", predict)
    sent = []

    def send(answers):
        for path in sorted(answers.glob("*fhir.json")):
            (report,) = [
                one["resource"]
                for one in json.loads(path.read_text())["entry"]
                if one["resource"]["resourceType"] == "DiagnosticReport"
            ]
            sent.append((path.name, report["identifier"][0]["value"], report["conclusion"]))
        return ""

    def receiver(**more):
        to = Peer("ARCHIVE", "127.0.0.1", 4242)
        found = Receiver(model, tmp_path / "queue", "FEDRETINA", ("ARCHIVE",), to, **more)
        monkeypatch.setattr(found, "_send", send)
        return found

    return SimpleNamespace(receiver=receiver, model=model, sent=sent, queue=tmp_path / "queue")


def wait_in(queue, *names, **tags):
    pixels = np.full((40, 40, 3), 90, np.uint8)
    for name in names:
        with warnings_held_back():
            write_dicom(queue / "waiting" / "one" / name, pixels, eye="L", **tags)
    return queue / "waiting" / "one"


def test_a_later_picture_of_an_eye_is_answered_with_those_before_and_not_milder(answering, monkeypatch):
    queue, sent = answering.queue, answering.sent
    study = wait_in(queue, ILL, "well.dcm")
    answering.receiver()._do(study)
    (together,) = sent
    assert "A doctor must see it" in together[2]
    assert not study.exists()
    shutil.rmtree(queue / "earlier" / "one")
    sent.clear()
    answering.receiver()._do(wait_in(queue, ILL))
    kept = queue / "earlier" / "one"
    assert sorted(path.name for path in kept.iterdir()) == [ILL, "rows.json"]
    assert "PixelData" not in dcmread(kept / ILL)
    assert (kept.stat().st_mode | (kept / ILL).stat().st_mode) & 0o077 == 0
    # Another process, after a restart.
    answering.receiver()._do(wait_in(queue, "well.dcm"))
    assert sent[1] == together
    assert sent[0][1] != together[1]
    # A kill between two removals leaves one of them, which is answered the same.
    answering.receiver()._do(wait_in(queue, "well.dcm"))
    assert sent[2] == together
    # Another model did not say it: nothing is made up, and what had come is put aside.
    with monkeypatch.context() as patch:
        changed = answering.model.operating.model_copy(update={"model_digest": "0" * 64})
        patch.setattr(answering.model, "operating", changed)
        answering.receiver()._do(wait_in(queue, "well.dcm"))
        assert len(sent) == 3
        assert [path.name for path in (queue / "failed" / "one").iterdir()] == ["well.dcm"]
        answering.receiver()._do(wait_in(queue, ILL, "well.dcm"))  # all of it anew
        assert "A doctor must see it" in sent[3][2]
    (kept / "rows.json").write_text("{}")
    answering.receiver()._do(wait_in(queue, "new.dcm"))
    assert len(sent) == 4
    os.utime(kept, (time.time() - 31 * 86400,) * 2)
    answering.receiver()._tidy()
    assert not kept.exists()


def test_what_is_put_aside_stays_beside_what_was_put_aside_before(answering, monkeypatch, caplog):
    queue, receiver = answering.queue, answering.receiver()

    def fail(*_):
        wait_in(queue, "late.dcm")
        raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(receiver, "_answer", fail)
        for name in ("one.dcm", "two.dcm"):
            receiver._do(wait_in(queue, name))
            (queue / "waiting" / "one" / "late.dcm").unlink()
    assert sorted(path.name for path in (queue / "failed" / "one").iterdir()) == ["one.dcm", "two.dcm"]
    (queue / "waiting" / "one").rmdir()
    odd = wait_in(queue, "odd.dcm", PatientSex="DOE", ImageLaterality="R")
    wait_in(queue, "well.dcm")
    caplog.clear()
    receiver._do(odd)
    assert sorted(path.name for path in (queue / "failed" / "one").iterdir()) == ["odd.dcm", "one.dcm", "two.dcm"]
    assert sorted(path.name for path in (queue / "earlier" / "one").iterdir()) == ["rows.json", "well.dcm"]
    assert "1 picture of a study cannot be answered" in caplog.text
    assert not odd.exists()
    odd.mkdir()  # a kill before the folder went
    assert receiver._due() == [odd]
    receiver._do(odd)
    assert not odd.exists()


def test_a_full_disk_costs_no_study_its_place(answering, monkeypatch, caplog):
    caplog.set_level("INFO")
    queue, receiver = answering.queue, answering.receiver()
    study = wait_in(queue, "one.dcm")
    make = Path.mkdir

    def full(place):
        def mkdir(path, *words, **more):
            if path.name == "one" and path.parent.name == place:
                raise OSError(28, "No space left on device")
            make(path, *words, **more)

        return mkdir

    for place, said in (("answers", "answers could not be written"), ("earlier", "could not be kept")):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", full(place))
            receiver._do(study)
        assert (study / "one.dcm").exists()
        assert not list((queue / "failed").iterdir())
        assert said in caplog.text
    receiver._do(study)
    assert not study.exists()
    assert str(dcmread(queue / "earlier" / "one" / "one.dcm").SOPInstanceUID) not in caplog.text  # highdicom would


def test_why_answers_are_not_taken_is_said(gated, identities, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module.Receiver, "_answer", lambda *_: (None, set()))
    model, study = Predictor.load(gated, "cpu"), wait_in(tmp_path / "queue", "one.dcm")
    answers = tmp_path / "queue" / "answers" / "one"
    for name, kind in (("0001-page.dcm", EncapsulatedPDFStorage), ("0001-report.dcm", ComprehensiveSRStorage)):
        with warnings_held_back():
            write_dicom(answers / name, np.zeros((8, 8, 3), np.uint8), SOPClassUID=kind)

    def end_with(*kinds, take=lambda event: 0x0000, tls=None, **more):
        entity = AE(ae_title="ARCHIVE")
        for name, value in more.items():
            setattr(entity, name, value)
        for kind in kinds:
            entity.add_supported_context(kind)
        return entity.start_server(("127.0.0.1", 0), False, tls, [(evt.EVT_C_STORE, take)])

    def told(port, tls=None):
        caplog.clear()
        to = Peer("ARCHIVE", "127.0.0.1", port)
        Receiver(model, tmp_path / "queue", "FEDRETINA", ("ARCHIVE",), to, tls=tls)._do(study)
        return caplog.text

    def gone(event):
        event.assoc.abort()
        return 0x0000

    both = (ComprehensiveSRStorage, EncapsulatedPDFStorage)
    ends = [
        (end_with(OP_8), "it takes no reports or pages"),
        (end_with(ComprehensiveSRStorage), "it takes no pages"),
        (end_with(*both, require_called_aet=True, ae_title="OTHER"), "must know the titles ARCHIVE and FEDRETINA"),
        (end_with(*both, take=lambda event: 0x0122), "it refused one (status 0x0122)"),
        (end_with(*both, take=gone), "it did not answer to one"),
    ]
    try:
        for end, why in ends:
            assert f"{why}; tried again in" in told(end.server_address[1])
        assert "nobody answers by TLS;" in told(ends[0][0].server_address[1], identities["model"])
    finally:
        for end, _ in ends:
            end.shutdown()
    assert "answers could not be sent to ARCHIVE: nobody answers;" in told(free_port())
    assert (study / "one.dcm").exists()


def test_files_of_tls_that_do_not_belong_together_are_refused(identities, tmp_path):
    model, archive = identities["model"], identities["archive"]
    (tmp_path / "empty").touch()
    for wrong in (model._replace(key=archive.key), model._replace(authority=tmp_path / "empty")):
        for server in (True, False):
            with pytest.raises(SettingsError, match="give PEM files"):
                wrong.context(server)


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
