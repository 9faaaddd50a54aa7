"""How a site takes a job's app: what is refused before FLARE unpacks a byte, and what is written down before it leaves.

FLARE's own command and deployer do the work, in one process.
"""

import io
import json
import logging
import zipfile
from types import SimpleNamespace
from uuid import uuid4

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.private.admin_defs import Message, MsgHeader, ReturnCode
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.client import training_cmds
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_engine_internal_spec import ClientEngineInternalSpec
from nvflare.private.fed.utils.app_deployer import AppDeployer
from signed_kit import certificate, write_kit

from fedretina.exchange.ledger import REFUSALS, Ledger
from fedretina.flare.job_door import DeployCommand
from fedretina.kit.audit import AUDIT, AuditLog
from fedretina.kit.job_folder import CONFIGS

LEAD = "lead@consortium.example"
GOOD = {**{f"config/{name}": b"{}" for name in CONFIGS}, "config/experiment.yaml": b"row: feduaa\n"}
UNSAID = "the site could not take the app: its own log says why."
META = {JobMetaKey.JOB_NAME.value: "spring", JobMetaKey.SUBMITTER_NAME.value: LEAD}


class Site(ClientEngineInternalSpec):
    """FLARE's engine, as far as its command needs it, over a kit's folder."""

    def __init__(self, folder):
        self.args = SimpleNamespace(workspace=str(folder))
        self.deployer = AppDeployer()

    def get_client_name(self):
        return "site-1"

    def get_component(self, name):
        return self.deployer

    def new_context(self):
        return FLContext()

    def deploy_app(self, **order):
        return ClientEngine.deploy_app(self, **order)


Site.__abstractmethods__ = frozenset()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site that asks for no signature and may let every lead deploy."""
    for name in ("startup", "local"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(
        "nvflare.private.fed.utils.app_deployer.AppAuthzService",
        SimpleNamespace(
            validate_app=lambda path: ("", {}),
            derive_local_app_info=lambda info, *_: info,
            authorize_app_info=lambda **_: (True, ""),
        ),
    )
    return Site(tmp_path)


@pytest.fixture
def unpacked(monkeypatch):
    """The folders into which FLARE's command unpacked what came."""
    seen, real = [], training_cmds.unzip_all_from_bytes
    monkeypatch.setattr(
        training_cmds, "unzip_all_from_bytes", lambda data, folder: seen.append(folder) or real(data, folder)
    )
    return seen


def packed(files, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(held := io.BytesIO(), "w", kind) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return held.getvalue()


def order(body, job=None, meta=META):
    made = Message(TrainingTopic.DEPLOY, body)
    made.set_header(RequestHeader.JOB_ID, job or str(uuid4()))
    made.set_header(RequestHeader.JOB_META, meta)
    made.set_header(RequestHeader.APP_NAME, "app")
    return made


def answer(site, made):
    reply = DeployCommand(training_cmds.DeployProcessor()).process(made, site)
    return reply.get_header(MsgHeader.RETURN_CODE), reply.body


def told(folder):
    return [line["words"] for line in Ledger(folder / REFUSALS).lines()]


@pytest.mark.attack(
    "a hostile server",
    "send a site an app that fills its disk or its memory when it is unpacked",
    "the site refuses it before FLARE unpacks it, and writes that down",
)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (packed({**GOOD, "config/experiment.yaml": bytes(2**22)}), "experiment.yaml of the job is larger than"),
        (packed({**GOOD, "more": bytes(2**22)}), "but this one has more"),
        (packed({**GOOD, **dict.fromkeys((f"{number}/" for number in range(200)), b"")}), "more than 100 files"),
        (packed({**GOOD, "a/" * 200: b""}), "more than 100 files and folders"),
        (packed(GOOD, zipfile.ZIP_LZMA), "packed otherwise than FLARE packs jobs"),
        (packed(GOOD, zipfile.ZIP_BZIP2), "packed otherwise than FLARE packs jobs"),
        (b"no zip", UNSAID),
    ],
)
def test_what_would_fill_the_machine_is_refused_before_it_is_unpacked(site, tmp_path, unpacked, body, said):
    code, words = answer(site, order(body))
    assert code == ReturnCode.ERROR
    assert said in words
    assert unpacked == []
    (written,) = told(tmp_path)
    assert words.removeprefix("NVFLARE_ERROR: ") == written
    assert [event["why"] for event in AuditLog(tmp_path).verify().events] == [written]


def test_flare_alone_would_unpack_it(site, unpacked):
    training_cmds.DeployProcessor().process(order(packed({**GOOD, "more": bytes(2**22)})), site)
    assert len(unpacked) == 1


def test_a_good_app_is_deployed_and_refuses_nothing(site, tmp_path, unpacked):
    made = order(packed(GOOD))
    assert answer(site, made) == (ReturnCode.OK, "deployed app to site-1")
    assert len(unpacked) == 1
    job = made.get_header(RequestHeader.JOB_ID)
    assert {path.name for path in (tmp_path / job / "app_site-1" / "config").iterdir()} == {
        name.removeprefix("config/") for name in GOOD
    }
    assert told(tmp_path) == []
    (event,) = AuditLog(tmp_path).verify().events
    assert (event["event"], event["job"], event["name"], event["submitter"]) == ("job taken", job, "spring", LEAD)


@pytest.mark.attack(
    "a hostile server",
    "name another submitter of a job than who signed it",
    "the site's audit log has the name of the checked certificate",
)
def test_the_audit_log_names_who_signed_and_not_whom_the_server_names(site, tmp_path, monkeypatch):
    kit, name = write_kit(tmp_path / "kit").folder / "startup", "lead@true.example"
    for part in ("fed_client.json", "rootCA.pem", "client.crt"):
        (tmp_path / "startup" / part).write_bytes((kit / part).read_bytes())
    checked = "nvflare.private.fed.utils.app_deployer.verify_folder_signature_and_get_signers"
    monkeypatch.setattr(checked, lambda *_: (True, [(name, "", "lead")]))
    monkeypatch.setattr(training_cmds, "verify_folder_signature", lambda *_: True)
    signed = {**GOOD, ".__nvfl_sig.json": b"{}", ".__nvfl_submitter.crt": certificate(name)}
    assert answer(site, order(packed(signed)))[0] == ReturnCode.OK
    (event,) = AuditLog(tmp_path).verify().events
    assert (event["event"], event["name"], event["submitter"]) == ("job taken", "spring", name)


@pytest.mark.parametrize(
    ("signed_only", "files", "meta", "said"),
    [
        (True, GOOD, META, "unsigned job rejected - signed deploy is required"),
        (False, {**GOOD, "config/.__nvfl_sig.json": b"{}", ".__nvfl_sig.json": b"{}"}, META, "signature verification"),
        (False, GOOD, None, "missing job meta"),
    ],
)
def test_what_flare_refuses_by_itself_is_written_down_too(site, tmp_path, signed_only, files, meta, said):
    (tmp_path / "startup" / "fed_client.json").write_text(json.dumps({"require_signed_jobs": signed_only}))
    (tmp_path / "startup" / "rootCA.pem").write_text("none")
    code, words = answer(site, order(packed(files), meta=meta))
    assert code == ReturnCode.ERROR
    (written,) = told(tmp_path)
    assert words.removeprefix("NVFLARE_ERROR: ") == written
    assert said in written
    (event,) = AuditLog(tmp_path).verify().events
    assert event["event"] == "job refused"


def test_what_names_no_job_is_written_down_in_one_line(site, tmp_path):
    code, words = answer(site, order(packed(GOOD), job="startup\nor"))
    assert code == ReturnCode.ERROR
    assert told(tmp_path) == [words]
    assert "\n" not in Ledger(tmp_path / REFUSALS).lines()[0]["job"]


def test_words_that_are_not_known_stay_at_the_site(site, tmp_path, caplog):
    site.deployer = SimpleNamespace(deploy=lambda **_: f"no room in {tmp_path}")
    with caplog.at_level(logging.WARNING):
        code, words = answer(site, order(packed(GOOD)))
    assert (code, words) == (ReturnCode.ERROR, f"NVFLARE_ERROR: {UNSAID}")
    assert told(tmp_path) == [UNSAID]
    assert str(tmp_path) in caplog.text


def test_a_refusal_that_cannot_be_written_down_does_not_leave(site, tmp_path):
    (tmp_path / REFUSALS).mkdir()
    (tmp_path / AUDIT).mkdir()
    assert answer(site, order(packed({**GOOD, "more": b""}))) == (ReturnCode.ERROR, UNSAID)
