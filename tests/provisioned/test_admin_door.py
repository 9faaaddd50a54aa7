"""What an admin is told when no session comes about; no server runs."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from credentials import certify
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from federation import LEAD, copy_kit, fedretina, loopback_project, nvflare
from fedretina.flare import admin_session
from ports import free_port

pytestmark = pytest.mark.provisioned


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, lasting):
    """Kits as provisioning leaves them."""
    home = tmp_path_factory.mktemp("fresh")
    nvflare(home, "provision", "-p", loopback_project(home, free_port()), "-w", home / "workspace")
    return home / "workspace" / "fedretina"


@pytest.fixture
def kit(fresh, tmp_path):
    """A lead's kit."""
    return copy_kit(fresh / "prod_00" / LEAD, tmp_path / "lead")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """What a knock at the door brings is asked here, not how soon it does: a resolver may take its time."""
    monkeypatch.setattr(admin_session, "_KNOCK_S", 60.0)


def status(kit):
    return fedretina("status", "--kit", kit, "--connect-timeout", 1, code=2)


def test_a_certificate_that_has_ended_is_named_with_its_day(fresh, kit):
    certify(kit / "startup" / "client.crt", fresh / "state", (-30, -1))
    day = datetime.now(UTC) - timedelta(days=1)
    said = status(kit)
    assert f"the certificate of {LEAD} ended on {day:%Y-%m-%d}" in said
    assert "Renewal" in said
    assert "no server answers" not in said


def test_a_certificate_that_has_not_begun_asks_for_the_clock(fresh, kit):
    certify(kit / "startup" / "client.crt", fresh / "state", (1, 300))
    said = status(kit)
    assert f"the certificate of {LEAD} begins on" in said
    assert "set the clock" in said


def test_a_certificate_of_another_authority_than_the_kits_is_said(kit, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    words = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "cert.json").write_text(json.dumps({"root_pri_key": key.private_bytes(*words).decode()}))
    certify(kit / "startup" / "client.crt", tmp_path, (-1, 300))
    said = status(kit)
    assert f"the certificate of {LEAD} is not of the authority of its kit" in said
    assert "from the same kit" in said


def test_a_server_that_does_not_run_is_asked_for(kit):
    said = status(kit)
    assert "no server answers this admin" in said
    assert "ask the project admin whether the server runs" in said


def test_a_name_that_no_dns_knows_is_said(kit):
    path = kit / "startup" / "fed_admin.json"
    words = json.loads(path.read_text())
    words["admin"]["host"] = "no-such-server.invalid"
    path.write_text(json.dumps(words))
    said = status(kit)
    assert "this machine knows no address for no-such-server.invalid" in said
    assert "DNS" in said
