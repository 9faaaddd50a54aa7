"""A hostile server, with the consortium's own certificate, checks nothing; a hardened site refuses what it sends."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from hostile_jobs import PLANTED, hostile_jobs, listening, plant
from jobs import WORDS, bring_code, change_in_store, export

from federation import LEAD, copy_kit, ended, point_to
from fedretina.exchange.ledger import REFUSALS, Ledger
from ports import free_port

pytestmark = [pytest.mark.flare, pytest.mark.provisioned]
REASONS = (
    "site-1: NVFLARE_ERROR: BYOC not permitted: the job brings custom/theirs.py, and no code of a job is taken: "
    "send what `fedretina job export` writes.",
    "site-1: app app does not pass signature verification",
    "site-1: unsigned job rejected - signed deploy is required",
)
ONE = {**WORDS, "quorum": 1}
LOOKED_UP = {
    "include-key": "but this one has config/config_fed_client.conf",
    "include-address": "but this one has config/config_fed_client.conf",
    "yaml": "but this one has config/config_fed_client.yml",
    "variables": "config_fed_client.json of the job holds a variable in braces",
    "nested": "but this one has config/more/comm_config.json",
    "claims-scope": "a filter that claims the site's scope",
}


class Said(NamedTuple):
    """What a hostile server got out of a site.

    Attributes:
        text: What the server printed.
        metas: What it says of each job, by the job's name.
        answers: The site's answers, by command.
        asked: Requests that a web server in the hospital's network saw.
        site: The site's kit.
        key: A line of its private key.
    """

    text: str
    metas: dict[str, str]
    answers: dict[str, str]
    asked: list[str]
    site: Path
    key: str


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
    resources.pop("app_validator", None)  # it reads what FLARE reads
    text = json.dumps({**resources, "class_allow_list": ["*"]})
    (server / "local" / "resources.json").write_text(text.replace(str(kits.storage), str(folder / "storage")))
    startup = server / "startup" / "fed_server.json"
    startup.write_text(json.dumps({**json.loads(startup.read_text()), "require_signed_jobs": False}))
    hostile = kits.start("hostile", server, FEDRETINA_TEST_HOSTILE="1")
    hostile.wait_until("Server started")
    secret = plant(folder / "loot.json", "file")
    key = site / "startup" / "client.key"
    with listening() as (address, asked), kits.session(LEAD, lead) as session:
        changes = hostile_jobs(secret, secret, key, address)
        jobs = {
            name: session.submit_job(str(export(kits, name, ONE, change, ["site-1"])))
            for name, change in (("with-code", bring_code), ("altered", None), ("unsigned", None))
        }
        jobs |= {
            name: session.submit_job(str(export(kits, f"h-{name}", ONE, changes[name], ["site-1"])))
            for name in LOOKED_UP
        }
        change_in_store(folder / "storage", jobs["altered"])
        change_in_store(folder / "storage", jobs["unsigned"], unsigned)
        kits.start("victim", site).wait_until("Successfully registered")
        for name, job in jobs.items():
            assert ended(session, job)["status"] == "FINISHED:FAILED_TO_RUN"
            assert not (kits.hospital("site-1") / "runs" / name).exists()
        metas = {name: json.dumps(session.get_job_meta(job)) for name, job in jobs.items()}
        plant(site / "local" / "loot.json", "file")  # relative: the honest part of this server takes no other path
        orders = ("cat site-1 local/loot.json", "grep site-1 word local/loot.json", "ls site-1 local", "pwd site-1")
        answers = {order: json.dumps(session.api.do_command(order), default=str) for order in orders}
        answers["report_env site-1"] = json.dumps(session.api.do_command("report_env site-1"), default=str)
    for reason in REASONS:
        hostile.wait_until(reason)
    text = hostile.text()
    kits.stop("hostile", "victim")
    return Said(text, metas, answers, asked, site, key.read_text().splitlines()[1])


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.attack(
    "a hostile server",
    "it sends a site a job with code, one that was altered, and one without a signature",
    "the site refuses all three",
)
def test_the_site_refuses_and_says_why(said, reason):
    told = {line["words"] for line in Ledger(said.site / REFUSALS).lines()}
    words = reason.removeprefix("site-1: ").removeprefix("NVFLARE_ERROR: ")
    assert words in told
    assert f"('deploy failure', ['server: OK', '{reason}'" in said.text


@pytest.mark.attack(
    "a hostile server",
    "send a job whose configuration includes files, addresses, the environment or variables",
    "the site refuses it before it reads it, and its reason names nothing of the site",
)
@pytest.mark.parametrize("name", LOOKED_UP)
def test_a_job_that_would_be_looked_up_is_refused_by_the_site_too(said, name):
    assert LOOKED_UP[name] in said.metas[name]


@pytest.mark.attack(
    "a hostile server",
    "send a site commands that read files, folders or its environment, without the headers that ask for rights",
    "no such command is answered",
)
def test_no_command_of_the_servers_reads_a_file_of_the_site(said):
    for order, answer in said.answers.items():
        assert "this site does not answer that" in answer, (order, answer)


def test_no_word_of_the_site_came_out(said):
    assert said.asked == []
    seen = [said.text, *said.metas.values(), *said.answers.values()]
    for word in (*PLANTED.values(), said.key, str(said.site)):
        assert not any(word in words for words in seen), word
