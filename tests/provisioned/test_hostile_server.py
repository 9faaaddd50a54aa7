"""A hostile server, with the consortium's own certificate, checks nothing; a hardened site refuses what it sends."""

import json

import pytest
from jobs import WORDS, bring_code, change_in_store, export

from federation import LEAD, copy_kit, ended, free_port, point_to

pytestmark = [pytest.mark.flare, pytest.mark.provisioned]
REASONS = (
    "site-1: NVFLARE_ERROR: BYOC not permitted",
    "site-1: app app does not pass signature verification",
    "site-1: unsigned job rejected - signed deploy is required",
)
ONE = {**WORDS, "quorum": 1}


def unsigned(name, data):
    return None if name.endswith((".__nvfl_sig.json", ".__nvfl_submitter.crt")) else data


@pytest.fixture(scope="module")
def said(kits, tmp_path_factory):
    """What the hostile server printed while it sent a site three bad jobs."""
    folder = tmp_path_factory.mktemp("hostile")
    server, site, lead = (copy_kit(kits.kit(name), folder / name) for name in ("server", "site-1", LEAD))
    port = free_port()
    for kit in (server, site, lead):
        point_to(kit, port)
    (server / "local" / "authorization.json").unlink()  # FLARE's default lets a lead bring code
    resources = json.loads((server / "local" / "resources.json").read_text())
    text = json.dumps({**resources, "class_allow_list": ["*"]})
    (server / "local" / "resources.json").write_text(text.replace(str(kits.storage), str(folder / "storage")))
    startup = server / "startup" / "fed_server.json"
    startup.write_text(json.dumps({**json.loads(startup.read_text()), "require_signed_jobs": False}))
    hostile = kits.start("hostile", server, FEDRETINA_TEST_HOSTILE="1")
    hostile.wait_until("Server started", 60)
    with kits.session(LEAD, lead) as session:
        jobs = {
            name: session.submit_job(str(export(kits, name, ONE, change, ["site-1"])))
            for name, change in (("with-code", bring_code), ("altered", None), ("unsigned", None))
        }
        change_in_store(folder / "storage", jobs["altered"])
        change_in_store(folder / "storage", jobs["unsigned"], unsigned)
        kits.start("victim", site).wait_until("Successfully registered")
        for name, job in jobs.items():
            assert ended(session, job)["status"] == "FINISHED:FAILED_TO_RUN"
            assert not (kits.hospital("site-1") / "runs" / name).exists()
    for reason in REASONS:
        hostile.wait_until(reason, 20)
    text = hostile.text()
    kits.stop("hostile", "victim")
    return text


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.attack(
    "a hostile server",
    "it sends a site a job with code, one that was altered, and one without a signature",
    "the site refuses all three",
)
def test_the_site_refuses_and_says_why(said, reason):
    assert f"('deploy failure', ['server: OK', '{reason}'" in said
