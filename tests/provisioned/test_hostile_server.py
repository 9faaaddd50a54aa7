"""A hostile server, with the consortium's own certificate, checks nothing; a hardened site refuses what it sends."""

import json

import pytest
from federation import LEAD, copy_kit, ended, point_to
from federation import free_port as another_port
from jobs import WORDS, bring_code, change_in_store, export

pytestmark = [pytest.mark.flare, pytest.mark.provisioned]
ONE = {**WORDS, "quorum": 1}


def unsigned(name, data):
    return None if name.endswith((".__nvfl_sig.json", ".__nvfl_submitter.crt")) else data


@pytest.fixture(scope="module")
def details(kits, tmp_path_factory):
    """What became of each job at the site, by the job's name, as the hostile server notes it."""
    folder = tmp_path_factory.mktemp("hostile")
    server, site, lead = (copy_kit(kits.kit(name), folder / name) for name in ("server", "site-1", LEAD))
    port = another_port()
    for kit in (server, site, lead):
        point_to(kit, port)
    resources = json.loads((server / "local" / "resources.json").read_text())
    text = json.dumps({**resources, "class_allow_list": ["*"]})
    (server / "local" / "resources.json").write_text(text.replace(str(kits.storage), str(folder / "storage")))
    (server / "local" / "authorization.json").unlink()  # FLARE's default lets a lead bring code
    kits.start("hostile", server, FEDRETINA_TEST_HOSTILE="1").wait_until("Server started", 60)
    found = {}
    with kits.session(LEAD, lead) as session:
        jobs = {
            name: session.submit_job(str(export(kits, name, ONE, change, ["site-1"])))
            for name, change in (("code-again", bring_code), ("changed-again", None), ("unsigned", None))
        }
        change_in_store(folder / "storage", jobs["changed-again"])
        change_in_store(folder / "storage", jobs["unsigned"], unsigned)
        victim = kits.start("victim", site)
        victim.wait_until("Successfully registered")
        for name, job in jobs.items():
            found[name] = ended(session, job)
    text = kits.running["hostile"].text()
    kits.stop("hostile", "victim")
    return found, text


def test_code_is_refused_by_the_site(details):
    print(details[0], details[1][-6000:])
    assert 0
